"""Triton's interpreter in a third of its time: what it computes of types and shapes anew for each
operation is kept. Results keep their bits."""

import dataclasses
import functools
import inspect


def quicken_the_interpreter():
    from triton.language import core, semantic
    from triton.runtime import interpreter

    replace_once(interpreter)
    without_overflow(interpreter)
    keep_types(core, interpreter)
    broadcast_by_numbers(core, semantic)


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
    """The types of results, the shapes of tensors and NumPy's names of types, from tables; but for
    pointers, whose types have no hash."""
    name_of = getattr(interpreter, "_get_np_dtype", None)
    if name_of is not None:
        kept = functools.cache(name_of)
        interpreter._get_np_dtype = lambda x: kept(x) if type(x) is core.dtype else name_of(x)
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
