"""Tensors as descriptors read them: blocks of rows by the hardware's copies."""

import triton
from torch import Tensor


def padded(size: int) -> int:
    return max(16, triton.next_power_of_2(size))


def strides_of(tensor: Tensor) -> list[int]:
    """Those of a descriptor: that of an axis of size 1 is arbitrary, and may be one it would
    refuse."""
    dense = 16 * triton.cdiv(tensor.shape[3], 16)
    pairs = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return [*(stride if size > 1 else dense for size, stride in pairs), 1]


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that a descriptor can read: rows that start at multiples of 16 bytes,
    and whose elements are neighbours. Of an empty one, zeros in which each axis has an element."""
    if not tensor.numel():
        tensor = tensor.new_zeros([max(1, size) for size in tensor.shape])
    size = tensor.element_size()
    strides = strides_of(tensor)[:3]
    fits = tensor.stride(3) == 1 or tensor.shape[3] == 1
    fits = fits and all(stride > 0 and stride * size % 16 == 0 for stride in strides)
    if fits and tensor.data_ptr() % 16 == 0:
        return tensor
    return room_for(tensor).copy_(tensor)


def room_for(tensor: Tensor) -> Tensor:
    """Memory for a tensor of this shape that a descriptor can read."""
    wide = row_of(tensor.shape[3], tensor.element_size())
    return tensor.new_empty((*tensor.shape[:3], wide))[..., : tensor.shape[3]]


def row_of(size: int, element_size: int) -> int:
    """The elements between two rows of so many, which start at multiples of 16 bytes."""
    return 16 * triton.cdiv(size * element_size, 16) // element_size
