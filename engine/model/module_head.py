"""The head of a model's own module, without its layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from engine.errors import Internal

Tensor = torch.Tensor


class ModuleHead:
    """Logits of any rows behind the layers that a module has computed.

    The module is called once more with a fixed decoder: for that call the decoder returns rows of
    its last output. So the module's own code behind the decoder (scaling, soft caps) runs, and only
    the requested rows of logits exist. Not thread-safe, like the module.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._decoder = model.get_decoder()
        self._given: Any = None
        self._decoder.register_forward_hook(self._note)

    def behind_last_call(self) -> Callable[[Tensor], Tensor]:
        """From indices [rows] of tokens of the module's last call to logits [rows, vocabulary]."""
        given, self._given = self._given, None
        return partial(self._logits, given)

    def _note(self, module: Any, arguments: Any, given: Any) -> None:
        self._given = given

    def _logits(self, given: Any, rows: Tensor) -> Tensor:
        if given is None:
            raise Internal(f"{type(self._model).__name__} gives no rows behind its layers")
        still = type(given)(last_hidden_state=given.last_hidden_state[:, rows])
        self._decoder.forward = lambda *_, **__: still
        try:
            # The ids give the number of tokens, and nothing else.
            out = self._model(input_ids=rows[None], use_cache=False)
        finally:
            del self._decoder.forward
            self._given = None
        logits: Tensor = out.logits[0]
        return logits
