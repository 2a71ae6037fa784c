# SPDX-License-Identifier: Apache-2.0
"""Open a tokentab recipe and gather rows as numpy arrays.

Needs libtokentab (found through TOKENTAB_LIBRARY, beside this file, or by the system's loader) and
numpy; nothing is built.

    import tokentab
    with tokentab.open("out/first_layer") as recipe:
        rows = recipe.gather([[5, 7], [0, 3]])          # {"q": array (2, 2, width), ...}
        q = recipe.gather([1, 2, 3], outputs="q")       # array (3, width)

BF16 has no numpy dtype: such outputs come as uint16 (the bits), or, with widen=True, as float32.
"""
import ctypes
import ctypes.util
import os

import numpy

__all__ = ["open", "Recipe", "TokentabError", "OutOfVocabulary", "version"]

OK, EINVAL, EBOUNDS, EFORMAT, EIO, ENOMEM = range(6)
F64, F32, F16, BF16 = range(4)
_NUMPY = {F64: numpy.dtype("<f8"), F32: numpy.dtype("<f4"), F16: numpy.dtype("<f2"),
          BF16: numpy.dtype("<u2")}
_NAMES = {F64: "F64", F32: "F32", F16: "F16", BF16: "BF16"}
_I32, _I64 = range(2)
_MAX_RANK = 16


class _Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 512)]


class _Opts(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint), ("cache_bytes", ctypes.c_size_t)]


class _Info(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("width", ctypes.c_uint64)]


class _Ids(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int), ("rank", ctypes.c_uint),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64))]


class _Request(ctypes.Structure):
    _fields_ = [("output", ctypes.c_size_t), ("data", ctypes.c_void_p),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("capacity_bytes", ctypes.c_size_t)]


class TokentabError(Exception):
    """A failed call; .status is the library's number."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class OutOfVocabulary(TokentabError, IndexError):
    """An id outside the vocabulary or the recipe's id list."""


def _load():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtokentab.so.0")
    path = os.environ.get("TOKENTAB_LIBRARY")
    if not path:
        path = here if os.path.exists(here) else ctypes.util.find_library("tokentab")
    lib = ctypes.CDLL(path or "libtokentab.so.0")
    handle, error = ctypes.c_void_p, ctypes.POINTER(_Error)
    for name, result, arguments in (
            ("tokentab_open", ctypes.c_int,
             [ctypes.c_char_p, ctypes.POINTER(_Opts), ctypes.POINTER(handle), error]),
            ("tokentab_close", None, [ctypes.POINTER(handle)]),
            ("tokentab_is_historical", ctypes.c_int, [handle]),
            ("tokentab_num_embeddings", ctypes.c_uint64, [handle]),
            ("tokentab_kind", ctypes.c_char_p, [handle]),
            ("tokentab_n_outputs", ctypes.c_size_t, [handle]),
            ("tokentab_output", ctypes.c_int, [handle, ctypes.c_size_t, ctypes.POINTER(_Info)]),
            ("tokentab_n_routes", ctypes.c_size_t, [handle]),
            ("tokentab_route", ctypes.c_size_t, [handle, ctypes.c_uint64]),
            ("tokentab_route_name", ctypes.c_char_p, [handle, ctypes.c_size_t]),
            ("tokentab_gather", ctypes.c_int,
             [handle, ctypes.POINTER(_Ids), ctypes.c_int, ctypes.POINTER(_Request),
              ctypes.c_size_t, error]),
            ("tokentab_prefetch", ctypes.c_int,
             [handle, ctypes.POINTER(_Ids), ctypes.c_int, error]),
            ("tokentab_trim", None, [handle]),
            ("tokentab_version", ctypes.c_char_p, [])):
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


_lib = None


def _library():
    global _lib
    if _lib is None:
        _lib = _load()
    return _lib


def version():
    """Version of the library."""
    return _library().tokentab_version().decode()


def _check(status, error):
    if status != OK:
        kind = OutOfVocabulary if status == EBOUNDS else TokentabError
        raise kind(status, error.message.decode("utf-8", "replace"))


def _int64s(values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def _element_strides(array):
    return _int64s([s // array.itemsize for s in array.strides])


class Recipe:
    """An open recipe.  Gathers from several threads at once are fine; close() ends its use."""

    def __init__(self, path, verify=False, require_seal=False, cache_bytes=0):
        self._handle = ctypes.c_void_p()
        error = _Error()
        opts = _Opts((1 if verify else 0) | (2 if require_seal else 0), cache_bytes)
        _check(_library().tokentab_open(os.fsencode(path), opts, self._handle, error), error)
        self.outputs = {}
        for i in range(_lib.tokentab_n_outputs(self._handle)):
            info = _Info()
            _lib.tokentab_output(self._handle, i, info)
            self.outputs[info.name.decode()] = (i, info.dtype, info.width)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def close(self):
        if self._handle:
            _lib.tokentab_close(self._handle)
            self._handle = ctypes.c_void_p()

    def _open(self):
        if not self._handle:
            raise ValueError("the recipe is closed")
        return self._handle

    @property
    def kind(self):
        return _lib.tokentab_kind(self._open()).decode()

    @property
    def num_embeddings(self):
        return _lib.tokentab_num_embeddings(self._open())

    @property
    def historical(self):
        """The recipe changed since it was validated."""
        return bool(_lib.tokentab_is_historical(self._open()))

    @property
    def routes(self):
        handle = self._open()
        return [_lib.tokentab_route_name(handle, i).decode()
                for i in range(_lib.tokentab_n_routes(handle))]

    def route(self, n_ids):
        """Name of the route that a call with n_ids ids takes."""
        return self.routes[_lib.tokentab_route(self._open(), n_ids)]

    def dtype(self, output):
        return _NAMES[self.outputs[output][1]]

    def width(self, output):
        return self.outputs[output][2]

    def _ids(self, ids):
        array = numpy.asarray(ids)
        if array.size == 0 and array.dtype == numpy.float64:
            array = array.astype(numpy.int64)
        if array.dtype.kind not in "iu":
            raise TypeError("ids must be integers, not " + str(array.dtype))
        if array.dtype.newbyteorder("=") not in (numpy.int32, numpy.int64) or \
                not array.dtype.isnative:
            if array.dtype.kind == "u" and array.size and int(array.max()) > 2**63 - 1:
                raise OutOfVocabulary(EBOUNDS, "an id is above 2**63 - 1")
            array = array.astype(numpy.int64)
        if any(s % array.itemsize for s in array.strides) or array.ndim > _MAX_RANK:
            array = numpy.ascontiguousarray(array)
        shape, strides = _int64s(array.shape), _element_strides(array)
        ids = _Ids(array.ctypes.data if array.size else None,
                   _I32 if array.dtype.itemsize == 4 else _I64, array.ndim, shape, strides)
        return array, ids

    def _route_number(self, route):
        return -1 if route is None else self.routes.index(route)

    def gather(self, ids, outputs=None, route=None, out=None, widen=False):
        """Rows of `outputs` (a name, a list of names, or None for all) for ids of any shape: arrays
        of shape ids.shape + (width,); one array for a single name, else a dict.

        route: a name of .routes; None chooses by the number of ids.
        out: arrays to fill (one, or a dict by name), of any strides.
        widen: BF16 as float32."""
        names = list(self.outputs) if outputs is None else \
            [outputs] if isinstance(outputs, str) else list(outputs)
        handle, error = self._open(), _Error()
        array, c_ids = self._ids(ids)
        requests, results, kept = (_Request * max(len(names), 1))(), {}, []
        for request, name in zip(requests, names):
            index, dtype, width = self.outputs[name]
            shape = array.shape + (width,)
            given = out if isinstance(outputs, str) else (out or {}).get(name)
            result = numpy.empty(shape, _NUMPY[dtype]) if given is None else given
            if result.shape != shape or result.dtype != _NUMPY[dtype] or \
                    not result.flags.writeable or any(s % result.itemsize for s in result.strides):
                raise ValueError("out for %s: expected a writable array %s of %s"
                                 % (name, shape, _NUMPY[dtype]))
            strides = _element_strides(result)
            kept.append(strides)
            request.output, request.data, request.strides = index, result.ctypes.data, strides
            request.capacity_bytes = result.nbytes
            results[name] = result
        _check(_lib.tokentab_gather(handle, c_ids, self._route_number(route), requests,
                                    len(names), error), error)
        if widen:
            for name in names:
                if self.outputs[name][1] == BF16:
                    wide = results[name].astype(numpy.uint32) << 16
                    results[name] = wide.view(numpy.float32)
        return results[outputs] if isinstance(outputs, str) else results

    def prefetch(self, ids, route=None):
        """Ask the system for the rows' pages ahead of a gather."""
        array, c_ids = self._ids(ids)
        error = _Error()
        _check(_lib.tokentab_prefetch(self._open(), c_ids, self._route_number(route), error), error)
        del array

    def trim(self):
        """Give mapped pages and cached chunks back."""
        _lib.tokentab_trim(self._open())


def open(path, **options):  # noqa: A001 - tokentab.open reads well
    """Open a recipe folder; see Recipe."""
    return Recipe(path, **options)
