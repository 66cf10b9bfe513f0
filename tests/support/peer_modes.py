"""What other code computes in float32 whatever the dtype of its weights is, computed in double: so
that what it gives is the same on every CPU, and no rounding of its own is in the truth."""

import torch
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """Code that asks for float32 gets float64: many modules compute angles, features or a softmax
    in float32."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(widened, args), **{n: widened(x) for n, x in (kwargs or {}).items()})

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(self.default)
        return super().__exit__(*error)


def widened(argument):
    return torch.float64 if argument is torch.float32 else argument


class Float32Angles(TorchFunctionMode):
    """Angles in float32, as a rotation of `angle="float32"` has them: each power is rounded to
    float32 from double, and a cosine or sine is that of the float32 angle in double. torch's own
    are off by up to an ulp, on each CPU by another; products and quotients are exact everywhere."""

    POWERS, WAVES = {"pow", "__pow__", "__rpow__", "exp", "log"}, {"cos", "sin"}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        given = [x for x in args if isinstance(x, torch.Tensor)]
        if name not in self.POWERS | self.WAVES or all(x.dtype != torch.float32 for x in given):
            return function(*args, **kwargs)
        wide = [x.double() if isinstance(x, torch.Tensor) else x for x in args]
        found = function(*wide, **kwargs)
        return found if name in self.WAVES else found.float()
