"""Array namespaces, validation and the boundary conventions, in one place for every room.

Everything in ``theory`` is written over the Python array API standard, so that numpy arrays and
torch tensors on any device run through the same lines. This module holds what the standard lacks
(row-wise gather, search and compaction) and the checks that every public function makes once.

Dtype policy: inside rules, laws and frontiers all probabilities are float64; results come back in
the dtype of the input (float32 in, float32 out). Half precision is refused: a distribution that was
rounded after sampling is not the distribution that was sampled.

Boundary conventions, the same for all rules: 0/0 in a ratio is 1 (neither donor nor receiver), an
empty residual falls back to the verifier q, equal keys are resolved by the lowest token index or by
including every tied token, and a candidate is accepted iff u·p_n < b_n·p_n.
"""

from theory.arrays.basis import (
    Array,
    device_of,
    dtype_name,
    free_to_ask,
    has_negative_zero,
    is_lazy,
    namespace,
    quiet,
    to_numpy,
)
from theory.arrays.checks import (
    SUM_TOLERANCE,
    check_distribution,
    check_distributions,
    check_elementwise,
    check_same_place,
    check_scalar,
    coerce,
    one_per_row,
    plain_number,
    refuse_unfit,
)
from theory.arrays.rows import (
    UNIT,
    compact,
    kth_largest,
    normalised_or,
    one_hot,
    put,
    quotient,
    ratio_of,
    replace_columns,
    scatter_rows,
    search_rows,
    take_rows,
)

__all__ = [
    "SUM_TOLERANCE",
    "UNIT",
    "Array",
    "check_distribution",
    "check_distributions",
    "check_elementwise",
    "check_same_place",
    "check_scalar",
    "coerce",
    "compact",
    "device_of",
    "dtype_name",
    "free_to_ask",
    "has_negative_zero",
    "is_lazy",
    "kth_largest",
    "namespace",
    "normalised_or",
    "one_hot",
    "one_per_row",
    "plain_number",
    "put",
    "quiet",
    "quotient",
    "ratio_of",
    "refuse_unfit",
    "replace_columns",
    "scatter_rows",
    "search_rows",
    "take_rows",
    "to_numpy",
]
