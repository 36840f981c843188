"""Data sets and loaders: what their rows are."""

from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    DictValue,
    LibraryObject,
    collect_marks,
    make_dict,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall

SAME_ROWS = {
    "shuffle", "select", "train_test_split", "with_format", "remove_columns", "rename_column", "flatten",
    "take", "skip", "set_format", "shard", "sort", "repeat", "to_list", "iterrows", "to_dict", "sample",
    "head", "reset_index", "dropna", "drop_duplicates", "to_pandas", "batch", "cast", "itertuples",
}  # fmt: skip


def interpret_dataset_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    last, given = call.last, (call.positional[0] if call.positional else NOTHING)
    if last == "DataLoader" or last.endswith("DataLoader"):
        return _build_loader(machine, call)
    if last == "from_dict" and call.receiver is None:
        for one in given.things:
            if isinstance(one, DictValue):
                columns = {name: machine.read_element(value) for name, value in one.known.items()}
                return build_dataset(make_dict(columns, machine.read_element(one.rest)))
    if last in ("from_list", "from_pandas", "DataFrame") and call.all:
        return build_dataset(machine.read_element(call.all[0]))
    if last == "from_generator":
        return build_dataset(machine.read_element(machine.call_value(given, [], {})))
    if last in ("concatenate_datasets", "ConcatDataset"):
        return build_dataset(machine.read_element(machine.read_element(given)))
    if last == "TensorDataset":
        return build_dataset(
            make_open_list(AbstractValue(frozenset().union(*map(collect_marks, call.positional))))
        )
    if call.receiver is None:
        return None
    if not any(isinstance(one, LibraryObject) and "rows" in one.attributes for one in call.receiver.things):
        return None
    rows = machine.read_element(call.receiver)
    if last == "map":
        return build_dataset(_map_rows(rows, machine.call_value(given, [rows], {})))
    if last == "filter":
        return build_dataset(
            machine.mark_filtered(rows, collect_marks(machine.call_value(given, [rows], {})))
        )
    if last in SAME_ROWS:
        return call.receiver
    return None


def build_dataset(rows: AbstractValue) -> AbstractValue:
    return make_value(LibraryObject("dataset", attributes={"rows": rows}))


def _map_rows(rows: AbstractValue, new: AbstractValue) -> AbstractValue:
    """What a function gives for a row is added to the row."""
    before = next((one for one in rows.things if isinstance(one, DictValue)), None)
    after = next((one for one in new.things if isinstance(one, DictValue)), None)
    if after is None:
        return AbstractValue(rows.marks | collect_marks(new), things=rows.things)
    known = {**(before.known if before else {}), **after.known}
    rest = before.rest if before else AbstractValue(rows.marks)
    return AbstractValue(new.marks, things=make_dict(known, rest).things)


def _build_loader(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue:
    rows = machine.read_element(
        call.positional[0] if call.positional else call.keywords.get("dataset", NOTHING)
    )
    collate = call.get_argument("collate_fn")
    if collate is not None and any(not isinstance(one, LibraryObject) for one in collate.things):
        rows = machine.call_value(collate, [make_open_list(rows)], {})
    return make_value(LibraryObject("loader", attributes={"rows": rows}))
