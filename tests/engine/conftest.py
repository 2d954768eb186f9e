"""Without a CUDA device, Triton's kernels are interpreted; it must be set before they load."""

import importlib.util
import os

import numpy as np
import torch


def _mend_interpreter():
    """Two faults of Triton 3.6's: loop bounds under NumPy 2.4, and products of bfloat16.

    It makes bounds of one-element arrays by int(), and multiplies bfloat16 as the uint16 it
    keeps them in.
    """
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    builder = interpreter.InterpreterBuilder
    create_dot = builder.create_dot

    def patched(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def wide(handle):
        if handle.dtype.scalar != bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), float32)

    interpreter._patch_lang_tensor = patched
    builder.create_dot = lambda self, a, b, *rest: create_dot(self, wide(a), wide(b), *rest)


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is not None:
        _mend_interpreter()
