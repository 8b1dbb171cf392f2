"""Packed linears agree with F.linear, and fall back to it where packing is not possible."""

import pytest
import torch
from torch.nn import functional as F

from banyan.kernels import ops
from banyan.kernels.linear.packed import quantize
from banyan.runtime.errors import ConfigError
from banyan.runtime.model import linear
from banyan.runtime.model.linear import Linear


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


# ---- weights in 8 bits ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("n_rows", [1, 7, 200])
@pytest.mark.parametrize(("n_in", "n_out"), [(40, 33), (600, 130)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-3)])
def test_int8_linear_equals_the_dequantized_product(n_rows, n_in, n_out, dtype, tolerance):
    g = torch.Generator().manual_seed(0)
    weight, x = torch.randn(n_out, n_in, generator=g).to(dtype), torch.randn(n_rows, n_in, generator=g).to(dtype)
    weight[3] = 0.0  # a row without a scale
    weight[4] *= 1000.0  # each row has its own scale
    bias = torch.randn(n_out, generator=g).to(dtype)
    numbers, scale = quantize(weight)
    layer = Linear(weight, bias, is_int8=True)
    panels = layer.weight.panels
    assert (panels.dtype, numbers.abs().amax()) == (torch.int8, 127)
    expected = F.linear(x.double(), numbers.double() * scale.double()[:, None], bias.double())
    terms = F.linear(x.double().abs(), (numbers.double() * scale.double()[:, None]).abs(), bias.double().abs())
    assert ((layer(x).double() - expected).abs() <= tolerance * terms).all()
    assert (numbers.float() * scale[:, None] - weight.float()).abs().amax() <= scale.amax() * 0.51


@pytest.mark.usefixtures("native")
def test_row_of_an_int8_product_is_independent_of_other_rows():
    layer, x = Linear(torch.randn(70, 600), is_int8=True), torch.randn(200, 600)
    assert torch.equal(layer(x)[:1], layer(x[:1]))


@pytest.mark.usefixtures("no_library")
def test_int8_without_our_library_raises():
    with pytest.raises(ConfigError, match="C\\+\\+ compiler"):
        Linear(torch.randn(8, 16), is_int8=True)
