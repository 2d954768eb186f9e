"""Without a CUDA device, Triton's kernels are interpreted; it must be set before they load."""

import importlib.util
import os

import numpy as np
import torch


def _mend_interpreter():
    """Faults of Triton 3.6's: loop bounds under NumPy 2.4, products of bfloat16, casts to FP8.

    It makes bounds of one-element arrays by int(), multiplies bfloat16 as the uint16 it keeps
    them in, and loses the carry where rounding to FP8 gives the next power of two.
    """
    from triton.language import bfloat16, float8e4nv, float16, float32
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    builder = interpreter.InterpreterBuilder
    create_dot, create_fp_to_fp = builder.create_dot, builder.create_fp_to_fp
    types = {
        float8e4nv: (torch.float8_e4m3fn, torch.uint8, np.uint8),
        bfloat16: (torch.bfloat16, torch.int16, np.uint16),
        float16: (torch.float16, torch.float16, np.float16),
        float32: (torch.float32, torch.float32, np.float32),
    }

    def patched(tensor, scope):
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def wide(handle):
        if handle.dtype.scalar != bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), float32)

    def cast(self, source, kind, rounding):
        if float8e4nv not in (source.dtype.scalar, kind.scalar):
            return create_fp_to_fp(self, source, kind, rounding)
        bits = torch.from_numpy(np.ascontiguousarray(source.data).view(source.data.dtype))
        to, bits_of, numpy_type = types[kind.scalar]
        numbers = bits.view(types[source.dtype.scalar][0]).to(to).view(bits_of)
        return interpreter.TensorHandle(numbers.numpy().view(numpy_type), kind.scalar)

    interpreter._patch_lang_tensor = patched
    builder.create_fp_to_fp = cast
    builder.create_dot = lambda self, a, b, *rest: create_dot(self, wide(a), wide(b), *rest)


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") is not None:
        _mend_interpreter()
