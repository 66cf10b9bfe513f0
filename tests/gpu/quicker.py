"""Triton's interpreter in a third of its time: what it computes of types and shapes anew for each
operation is kept. Results keep their bits; denormal numbers of bfloat16, which it converts wrongly,
are converted rightly."""

import dataclasses
import functools
import inspect

import numpy as np


def quicken_the_interpreter():
    from triton.language import core, semantic
    from triton.runtime import interpreter

    replace_once(interpreter)
    without_overflow(interpreter)
    keep_types(core, interpreter)
    move_bits(core, interpreter)
    broadcast_by_numbers(core, semantic)
    keep_equal_types(core, semantic)


def replace_once(interpreter):
    """For each call of a function within a kernel it replaces members of Triton's modules again,
    though a launch has done so. A Triton without what is replaced here is not quickened."""
    from triton.language.core import is_builtin

    replace = getattr(interpreter, "_patch_lang", None)
    nothing = getattr(interpreter, "_LangPatchScope", None)
    if replace is None or nothing is None:
        return
    language = interpreter.tl
    one = {  # a member of each module that is replaced
        module: next(name for name, member in vars(module).items() if is_builtin(member))
        for module in (language, language.core)
    }
    seen = {}

    def replaced(function):
        if function not in seen:
            visible = [x for x in function.__globals__.values() if inspect.ismodule(x)]
            seen[function] = [x for x in visible if x in one]
        own = seen[function]  # none: an error
        if not own or any(is_builtin(getattr(module, one[module])) for module in own):
            return replace(function)
        return nothing()

    interpreter._patch_lang = replaced


def without_overflow(interpreter):
    """It computes sums and products of integers once more, to see whether they overflow, of which
    it says nothing unless it debugs."""
    builder = getattr(interpreter, "interpreter_builder", None)
    if hasattr(getattr(builder, "options", None), "sanitize_overflow"):
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def keep_types(core, interpreter):
    """The types of results and the shapes of tensors, but for those of pointers, which have no
    hash; and NumPy's names of types."""
    name_of = getattr(interpreter, "_get_np_dtype", None)
    if name_of is not None:
        kept, address = functools.cache(name_of), np.dtype(np.uint64)

        def kept_name_of(x):
            scalar = x.element_ty if type(x) is core.block_type else x
            if type(scalar) is core.dtype:
                return kept(scalar)
            return address if type(scalar) is core.pointer_type else name_of(x)

        interpreter._get_np_dtype = kept_name_of
    init_type, init_tensor = core.block_type.__init__, core.tensor.__init__
    types = {}  # what a type has, and its tensors' shape and count of elements

    def shape_and_count(kind):
        tensor = core.tensor.__new__(core.tensor)
        init_tensor(tensor, None, kind)
        return tensor.shape, tensor.numel

    def init_kept_type(self, element_ty, shape):
        key = (element_ty.name, *(getattr(x, "value", x) for x in shape))
        if type(element_ty) is core.dtype and key in types:
            vars(self).update(types[key])
            return
        init_type(self, element_ty, shape)
        self.of_tensors = shape_and_count(self)
        if type(element_ty) is core.dtype:
            types[key] = dict(vars(self))

    def init_kept_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensors if type.is_block() else of_scalars

    of_scalars = shape_and_count(core.int32)
    core.block_type.__init__, core.tensor.__init__ = init_kept_type, init_kept_tensor


def move_bits(core, interpreter):
    """Casts between float32 and bfloat16, which truncate, of which it computes sign, exponent and
    digits one by one. Arrays lie in the order of their axes, as its own do: sums depend on it."""
    convert = getattr(interpreter, "_convert_float", None)
    if convert is None:
        return
    narrow, wide = core.bfloat16, core.float32

    def moved(numbers, of, to, rounding):
        if of == narrow and to == wide:
            return numbers.astype(np.uint32, order="C") << np.uint32(16)
        if of == wide and to == narrow and rounding is None:
            return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16, order="C")
        return convert(numbers, of, to, rounding)

    interpreter._convert_float = moved


def broadcast_by_numbers(core, semantic):
    """Shapes of one rank compare as Python's numbers; Triton's tuples make new ones to compare."""
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def stretched(self, tensor, own, shape):
        if own == shape:
            return tensor
        handle = self.builder.create_broadcast(tensor.handle, shape)
        return self.tensor(handle, core.block_type(tensor.type.scalar, shape))

    def broadcast_impl_value(self, lhs, rhs):
        if lhs.type.is_block() and rhs.type.is_block():
            left, right = [*lhs.type.shape], [*rhs.type.shape]
            if left == right:
                return lhs, rhs
            if len(left) == len(right):
                shape = [max(pair) for pair in zip(left, right, strict=True)]
                pairs = [*zip(left, shape, strict=True), *zip(right, shape, strict=True)]
                if all(length in (1, wide) for length, wide in pairs):
                    return stretched(self, lhs, left, shape), stretched(self, rhs, right, shape)
        return broadcast(self, lhs, rhs)

    semantic.TritonSemantic.broadcast_impl_value = broadcast_impl_value


def keep_equal_types(core, semantic):
    """Operands of one type of 32 or 64 bits need no cast, and a Python number of that kind beside
    a tensor is made a tensor once."""
    check = semantic.TritonSemantic.binary_op_type_checking_impl
    kinds = dict.fromkeys((core.int32, core.uint32, core.int64), int)
    kinds |= dict.fromkeys((core.float32, core.float64), float)
    # By id, since to hash a dtype takes long; the module keeps each.
    kind_of_number = {id(dtype): kind for dtype, kind in kinds.items()}
    constants = {}

    def beside(self, tensor, number):
        """The number as a tensor of the type and the shape of another, which stays as it is; None
        where that one may not."""
        if kind_of_number.get(id(tensor.dtype)) is not type(number):
            return None
        shape = tensor.type.shape if tensor.type.is_block() else ()
        key = (id(tensor.dtype), repr(number), *map(int, shape))
        if key not in constants:
            constants[key] = check(self, tensor, number)[1]
        return constants[key]

    def binary_op_type_checking_impl(self, lhs, rhs, *pointers, **asked):
        if "arithmetic_check" in asked:  # without it, types may differ
            return check(self, lhs, rhs, *pointers, **asked)
        left, right = type(lhs) is core.tensor, type(rhs) is core.tensor
        if left and right:
            if lhs.dtype is rhs.dtype and id(lhs.dtype) in kind_of_number:
                return self.broadcast_impl_value(lhs, rhs)
        elif left and (other := beside(self, lhs, rhs)) is not None:
            return lhs, other
        elif right and (other := beside(self, rhs, lhs)) is not None:
            return other, rhs
        return check(self, lhs, rhs, *pointers, **asked)

    semantic.TritonSemantic.binary_op_type_checking_impl = binary_op_type_checking_impl
