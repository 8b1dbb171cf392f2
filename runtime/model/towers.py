"""Images in models that transformers computes: the vision tower, and the rows of images in a step.

After the embedding layer, the tower's vectors for an image's rows replace the embeddings of the rows' ids. DeepStack
(Qwen3-VL) adds more vectors of the tower after the first layers. In Gemma 3 the rows of an image attend to each other
in both directions, which paged attention does not support; `attend_blocks` computes these rows with torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from banyan.kernels.kv_layout import Pool, read
from banyan.runtime.errors import Unsupported


class ImageSpan(NamedTuple):
    """Rows of one image that attend to each other in both directions.

    row, n: the first of these rows in the batch, and their number. start: the position of `row` in its text. first: the
    position of the image's first row, which an earlier step may have computed. pages: the request's pages.
    window_pages: the same for layers with a window."""

    row: int
    n: int
    start: int
    first: int
    pages: Sequence[int]
    window_pages: Sequence[int]


class ImageInputs(NamedTuple):
    """The rows of images in a step.

    rows       int64 [n]: the indices of these rows in the batch, in ascending order
    values     [n, hidden]: the vectors that replace the embeddings of these rows' ids
    deeper     for each of the first layers, in order, a tensor [n, hidden] that is added to the layer's output
    positions  int64 [3, n_rows]: the M-RoPE positions of all rows of the batch; None: the model has no M-RoPE
    blocks     runs of rows that attend to each other in both directions
    """

    rows: Tensor
    values: Tensor
    deeper: tuple[Tensor, ...] = ()
    positions: Tensor | None = None
    blocks: tuple[ImageSpan, ...] = ()


class ImageTower:
    """The part of a model that reads images. current: returns the images of the running step; None if it has none."""

    def __init__(self, model: Any, current: Callable[[], ImageInputs | None]) -> None:
        """Raises Unsupported if the installed transformers has no function that calls only the tower."""
        if not hasattr(model, "get_image_features"):
            raise Unsupported(
                f"{type(model).__name__} has no get_image_features in this version of transformers; install 5.24"
            )
        self._model, self._current = model, current
        model.get_input_embeddings().register_forward_hook(self._embed)
        for module in model.modules():
            if "deepstack_visual_embeds" in inspect.signature(module.forward).parameters:
                module.register_forward_pre_hook(self._add_deeper, with_kwargs=True)

    @torch.inference_mode()
    def __call__(self, arrays: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Returns the embeddings of an image's rows, then for each of the first layers the vectors to add to its
        output; all [n, hidden]. arrays: the output of transformers' image processor."""
        device, dtype = self._model.device, self._model.dtype
        placed = {
            name: array.to(device, dtype if array.is_floating_point() else None) for name, array in arrays.items()
        }
        found = self._model.get_image_features(**placed, return_dict=True)
        values = _joined(found.pooler_output)
        return (values, *map(_joined, getattr(found, "deepstack_features", None) or ()))

    def _embed(self, module: nn.Module, arguments: Any, out: Tensor) -> Tensor | None:
        images = self._current()
        if images is None or not len(images.rows):
            return None
        return out.index_copy(1, images.rows, images.values[None].to(out.dtype))

    def _add_deeper(self, module: nn.Module, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        images = self._current()
        if images is not None and images.deeper:
            n_rows = options["inputs_embeds"].shape[1]
            mask = torch.zeros(1, n_rows, dtype=torch.bool, device=images.rows.device)
            mask[0, images.rows] = True
            options = options | {"visual_pos_masks": mask, "deepstack_visual_embeds": list(images.deeper)}
        return arguments, options


def _joined(features: Tensor | Sequence[Tensor]) -> Tensor:
    whole = features if isinstance(features, Tensor) else torch.cat(tuple(features))
    return whole.reshape(-1, whole.shape[-1])


def attend_blocks(
    out: Tensor, q: Tensor, k_pool: Pool, v_pool: Pool, blocks: Sequence[ImageSpan], scale: float, window: int
) -> None:
    """Computes attention for the rows of each block, and writes it to `out` [n_rows, n_heads, head_dim]. K and V of all
    rows of the step must be in the pools. window: the sliding window of the layer in tokens; 0: none."""
    page = k_pool.shape[1]
    for row, n, start, first, pages, window_pages in blocks:
        end = start + n
        table = torch.tensor((window_pages if window else pages)[: -(-end // page)], device=q.device)
        k, v = (read(pool, table, q.dtype).flatten(0, 1)[:end].transpose(0, 1) for pool in (k_pool, v_pool))
        keys, at = torch.arange(end, device=q.device), torch.arange(start, end, device=q.device)[:, None]
        seen = (keys <= at) | (keys >= first)
        if window:
            seen &= keys > at - window
        own = F.scaled_dot_product_attention(
            q[row : row + n].transpose(0, 1)[None], k[None], v[None], seen, scale=scale, enable_gqa=True
        )
        out[row : row + n] = own[0].transpose(0, 1)
