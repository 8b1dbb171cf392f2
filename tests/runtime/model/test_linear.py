"""Packed linears agree with F.linear, and fall back to it where packing is not possible."""

import pytest
import torch
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.linear.grouped import FLOAT4, Grouped, concatenate, quantise
from banyan.runtime.model import linear
from banyan.runtime.model.linear import Linear
from forms import in_short


@pytest.fixture(autouse=True)
def _clear_capabilities():
    """Each test detects the capabilities of the machine again."""
    linear._can_pack.cache_clear()
    yield
    linear._can_pack.cache_clear()


@pytest.fixture
def no_library(monkeypatch):
    """Simulates a machine without a compiler."""
    monkeypatch.setattr(ops, "pack", lambda *_: None)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("n_rows", [0, 1, 7, 64])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)])
def test_linear_equals_f_linear(packs, n_rows, has_bias, dtype, atol, monkeypatch):
    if not packs:
        monkeypatch.setattr(ops, "pack", lambda *_: None)
    g = torch.Generator().manual_seed(0)
    weight, x = torch.randn(33, 40, generator=g).to(dtype), torch.randn(n_rows, 40, generator=g).to(dtype)
    bias = torch.randn(33, generator=g).to(dtype) if has_bias else None
    torch.testing.assert_close(Linear(weight, bias)(x), F.linear(x, weight, bias), atol=atol, rtol=atol)


def test_rows_can_be_strided():
    weight, x = torch.randn(8, 16), torch.randn(5, 2, 16)[:, 1]
    torch.testing.assert_close(Linear(weight)(x), F.linear(x, weight), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("native")
def test_weight_is_stored_only_in_packed_form():
    layer = Linear(torch.randn(8, 16))
    assert isinstance(layer.weight, ops.Packed)
    assert not layer.is_onednn
    assert layer.weight.panels.numel() < 2 * 64 * 16


@pytest.mark.usefixtures("no_library")
def test_weight_is_packed_by_onednn_without_our_library():
    layer = Linear(torch.randn(8, 16))
    if not layer.is_onednn:
        pytest.skip("this torch has no oneDNN")
    assert layer.weight.is_mkldnn
    assert not Linear(torch.randn(8, 16).half()).is_onednn  # float16 is slow there


@pytest.mark.usefixtures("no_library")
@pytest.mark.parametrize("failure", [RuntimeError("no such op"), None])
def test_broken_onednn_op_falls_back_to_f_linear(failure, monkeypatch):
    def broken(x, weight, bias, *rest):
        if failure is not None:
            raise failure
        return torch.zeros(x.shape[0], bias.shape[0])

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", broken, raising=False)
    weight, x = torch.randn(8, 16), torch.randn(3, 16)
    layer = Linear(weight)
    assert not layer.is_onednn
    torch.testing.assert_close(layer(x), F.linear(x, weight))


# ---- weights in few bits -------------------------------------------------------------------------------------------


def few_bits(n_out: int, n_in: int, n_bits: int, group: int, has_minimum: bool) -> Grouped:
    weight = torch.randn(n_out, n_in) * torch.logspace(-6, 3, n_out)[:, None]  # scales beyond the range of float16
    weight[3] = 0.0
    small = quantise(weight, n_bits, group)
    if not has_minimum:
        return small
    numbers = small.numbers + 8 if n_bits == 4 else small.numbers
    return Grouped(numbers, small.scale, -8.2 * small.scale.abs(), n_bits)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("n_rows", in_short([1, 12], [0, 1, 7, 12, 200]))
@pytest.mark.parametrize(("n_in", "n_out", "group"), [(40, 33, 32), (608, 130, 32), (640, 70, 64)])
@pytest.mark.parametrize("n_bits", [4, 8])
@pytest.mark.parametrize("has_minimum", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_product_with_few_bits_is_near_that_with_the_dequantised_weight(
    n_rows, n_in, n_out, group, n_bits, has_minimum, deterministic
):
    torch.manual_seed(0)
    weight = few_bits(n_out, n_in, n_bits, group, has_minimum)
    for dtype in (torch.float32, torch.bfloat16):
        x, bias = torch.randn(n_rows, n_in).to(dtype), torch.randn(n_out).to(dtype)
        layer = Linear(weight, bias, deterministic, dtype)
        assert layer.weight.panels.dtype == torch.uint8
        expected = F.linear(x.double(), weight.dequantise(torch.float64), bias.double())
        sizes = F.linear(x.double() ** 2, weight.dequantise(torch.float64) ** 2, bias.double() ** 2).sqrt()
        assert ((layer(x) - expected).abs() <= 0.04 * sizes).all()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("n_rows", [2, 30])
def test_row_that_is_not_finite_leaves_the_others_alone(n_rows):
    layer, x = Linear(few_bits(70, 64, 4, 32, False)), torch.randn(n_rows, 64)
    expected = layer(x)
    x[1, 5] = torch.nan
    assert layer(x)[1, 10:].isnan().all()
    assert torch.equal(layer(x)[0], expected[0])


@pytest.mark.usefixtures("no_library")
def test_few_bits_without_our_library_are_dequantised():
    torch.manual_seed(6)  # no sum is near zero, where the order of additions shows
    weight, x = few_bits(33, 40, 4, 32, False), torch.randn(3, 40)
    torch.testing.assert_close(Linear(weight)(x), F.linear(x, weight.dequantise()))


@pytest.mark.parametrize(("n_bits", "most"), [(8, 0.5), (4, 1.0)])
def test_rounding_is_to_the_nearest_number(n_bits, most):
    weight = torch.randn(9, 64)
    small = quantise(weight, n_bits)
    steps = (small.dequantise() - weight).view(9, 2, 32).abs().amax(2) / small.scale.abs()
    assert steps.max() <= most + 1e-5
    assert steps.median() <= 0.6


def test_concatenation_of_different_few_bits_is_that_of_their_weights():
    parts = [few_bits(5, 128, 4, 32, False), few_bits(4, 128, 4, 64, True), few_bits(6, 128, 8, 128, False)]
    floats = Grouped(
        torch.tensor([0, 1, 2, 3, 4, 6, 8, 12], dtype=torch.int8).repeat(5, 16), torch.ones(5, 4), None, FLOAT4
    )
    for some in (parts, parts[:2], parts[2:], [parts[0], floats], [floats, floats]):
        both, expected = concatenate(some, torch.float32), torch.cat([part.dequantise() for part in some])
        torch.testing.assert_close(both.dequantise(), expected, rtol=1e-5, atol=1e-8)
        assert both.n_bits == (some[0].n_bits if some[0].n_bits == some[-1].n_bits else 8)
    mixed = concatenate([parts[0], torch.ones(2, 128)], torch.bfloat16)
    assert torch.equal(mixed, torch.cat([parts[0].dequantise(torch.bfloat16), torch.ones(2, 128).bfloat16()]))
