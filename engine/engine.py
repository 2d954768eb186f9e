"""The engine: owns the device, the weights and the KV; its one verb is `forward`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from engine import attention
from engine.batch import pack
from engine.config import KvConfig
from engine.errors import ConfigError, Internal, UnsupportedModel
from engine.kv_cache import KvCache, block_bytes
from engine.layout import KvLayout, LayerShape
from engine.model import ModelDescription, load_weights
from engine.sampler import sample
from engine.sampling import SamplingParams
from engine.sequence import Outcome, Sequence, Span

log = logging.getLogger(__name__)

_CHECK_TOKENS = 24
# Largest logit difference from eager attention, relative to the largest logit.
_CHECK_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 5e-2}


class Engine:
    """One model on one device with a pool of KV blocks. Not thread-safe: one step at a time."""

    def __init__(
        self, description: ModelDescription, model: torch.nn.Module, cache: KvCache
    ) -> None:
        self.description = description
        self.cache = cache
        self._model: Any = model

    @classmethod
    def load(
        cls,
        description: ModelDescription,
        kv: KvConfig,
        *,
        device: torch.device | None = None,
        most_tokens: int,
        share: int = 1,
    ) -> Engine:
        """Load weights, learn the KV shape, size the pool and check attention against eager.

        `most_tokens` bounds the pool: more could never be used. `share` replicas share the
        device's memory.
        """
        device = device or best_device()
        model: Any = load_weights(description, device)
        layout = _probe_layout(description, model, kv.block_size)
        attention.register(attention.NAME, attention.paged_attention)
        _self_check(description, model, layout, device)
        model.set_attn_implementation(attention.NAME)
        blocks = kv.blocks or _fit_blocks(layout, device, kv.memory_fraction / share, most_tokens)
        log.info(
            "engine ready: %s on %s, attention torch, %d KV blocks of %d tokens (%.1f MiB)",
            description.architecture,
            device,
            blocks,
            layout.block_size,
            blocks * block_bytes(layout) / 2**20,
        )
        return cls(description, model, KvCache(layout, blocks, device))

    @torch.inference_mode()
    def forward(self, spans: list[Span]) -> list[Outcome]:
        """Compute the spans' tokens and sample where a span reaches its sequence's end.

        KV goes into the sequences' blocks; the sequences themselves are not changed. The answers
        are in the order of `spans`; None where nothing was sampled. A sequence whose numbers
        overflowed gets an Internal, and its blocks are cleared: a NaN left there would spread.
        """
        batch = pack(spans, self.cache)
        results: list[Outcome] = [None] * len(spans)
        sampling = [index for index in batch.order if spans[index].samples]
        logits = self._logits(batch.tokens, batch.positions, batch.last, batch.attention)
        if not sampling:
            return results
        tokens = sample(logits, [spans[index].sequence for index in sampling])
        for index, token in zip(sampling, tokens, strict=True):
            results[index] = token
            if isinstance(token, Internal):
                self.cache.clear(spans[index].sequence.blocks)
        return results

    def _logits(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        last: torch.Tensor,
        batch: attention.AttentionBatch,
    ) -> torch.Tensor:
        return _run(self._model, tokens, positions, last, batch)


def best_device() -> torch.device:
    """The CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _run(
    model: Any,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    batch: attention.AttentionBatch | None,
) -> torch.Tensor:
    """One pass of the model: logits [len(last), vocabulary]; an empty `last` computes none."""
    # `logits_to_keep` 0 means all; one discarded row is the least that can be asked for.
    keep = last if len(last) else last.new_zeros(1)
    out = model(
        input_ids=tokens,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=keep,
        **({} if batch is None else {"tandem_batch": batch}),
    )
    logits: torch.Tensor = out.logits[0]
    return logits[: len(last)]


def _probe_layout(description: ModelDescription, model: Any, block_size: int) -> KvLayout:
    """Run one token through the model to see what each layer would store."""
    probe = attention.ShapeProbe()
    attention.register("tandem_probe", probe)
    model.set_attn_implementation("tandem_probe")
    device = next(model.parameters()).device
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    with torch.inference_mode():
        _run(model, token, token, token[0], None)
    expected = list(range(int(model.config.get_text_config().num_hidden_layers)))
    if [layer for layer, *_ in probe.layers] != expected:
        raise UnsupportedModel(
            f"{description.architecture}: {len(probe.layers)} of {len(expected)} layers use "
            "attention with KV of their own; all must"
        )
    for layer, _, key_size, value_size in probe.layers:
        if key_size != value_size:
            raise UnsupportedModel(
                f"{description.architecture}: layer {layer} has keys of {key_size} and values of "
                f"{value_size}; they must be equal"
            )
    return KvLayout(
        layers=tuple(LayerShape(heads, size) for _, heads, size, _ in probe.layers),
        block_size=block_size,
        dtype=description.dtype,
        model_identity=description.identity,
    )


@torch.inference_mode()
def _self_check(
    description: ModelDescription, model: Any, layout: KvLayout, device: torch.device
) -> None:
    """Compare paged attention, in two chunks over scattered blocks, with the model's own."""
    length = min(_CHECK_TOKENS, description.context_tokens)
    tokens = [(7919 * (i + 1)) % description.vocabulary for i in range(length)]
    sequence = Sequence("check", tokens, length, SamplingParams(temperature=0.0, max_tokens=1))
    needed = layout.blocks_for(length)
    cache = KvCache(layout, 2 * needed, device)
    sequence.blocks = list(range(2 * needed - 1, -1, -2))
    model.set_attn_implementation(attention.NAME)
    half = length // 2
    spans = [Span(sequence, 0, half), Span(sequence, half, length - half)]
    for span in spans[0 if half else 1 :]:
        batch = pack([span], cache)
        ours = _run(model, batch.tokens, batch.positions, batch.last, batch.attention)
    model.set_attn_implementation("eager")
    row = torch.tensor([tokens], dtype=torch.long, device=device)
    place = torch.arange(length, device=device)
    theirs = _run(model, row, place[None], place[-1:], None)
    difference = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
    if not difference.item() <= _CHECK_TOLERANCE[description.dtype]:
        raise UnsupportedModel(
            f"{description.architecture}: paged attention disagrees with the model's own by "
            f"{difference.item():.2g} of the largest logit"
        )


def _fit_blocks(layout: KvLayout, device: torch.device, fraction: float, most_tokens: int) -> int:
    """Blocks that fit in that fraction of what is free now, at most for `most_tokens`."""
    cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if cuda else _available_memory()
    fitting = int(free * fraction) // block_bytes(layout)
    if fitting < 1:
        raise ConfigError("kv: not enough free memory for a single block")
    return min(fitting, layout.blocks_for(most_tokens))


def _available_memory() -> int:
    """Bytes that Linux says can be had without swapping (MemAvailable)."""
    with Path("/proc/meminfo").open() as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise ConfigError("kv: /proc/meminfo names no MemAvailable; set kv.blocks")
