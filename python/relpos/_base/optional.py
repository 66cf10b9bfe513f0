"""The types of PyTorch by which arguments are told apart, where it is installed: relpos.numpy
does without it."""

try:
    from torch import SymBool, SymFloat, SymInt, Tensor
    from torch.compiler import is_compiling
except ModuleNotFoundError:

    class Tensor:
        """Of which there is none."""

    SymBool = SymFloat = SymInt = Tensor

    def is_compiling() -> bool:
        return False


__all__ = ["SymBool", "SymFloat", "SymInt", "Tensor", "is_compiling"]
