"""Recorded logits on disk: the format, its writer, its reader, and the texts they lie on."""

from real_models.traces.arrays import write_trace
from real_models.traces.format import TraceHeader
from real_models.traces.reader import Trace, open_trace
from real_models.traces.writer import TraceWriter

__all__ = ["Trace", "TraceHeader", "TraceWriter", "open_trace", "write_trace"]
