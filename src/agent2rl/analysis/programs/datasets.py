"""Data sets and loaders: what their rows are."""

from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.values import (
    NOTHING,
    Fields,
    Foreign,
    Value,
    deep,
    fields,
    some,
    thing,
)

SAME = {
    "shuffle", "select", "train_test_split", "with_format", "remove_columns", "rename_column", "flatten",
    "take", "skip", "set_format", "shard", "sort", "repeat", "to_list", "iterrows", "to_dict", "sample",
    "head", "reset_index", "dropna", "drop_duplicates", "to_pandas", "batch", "cast", "itertuples",
}  # fmt: skip


def known(machine: Core, call: Call) -> Value | None:
    last, given = call.last, (call.positional[0] if call.positional else NOTHING)
    if last == "DataLoader" or last.endswith("DataLoader"):
        return _loader(machine, call)
    if last == "from_dict" and call.receiver is None:
        for one in given.things:
            if isinstance(one, Fields):
                columns = {name: machine.element(value) for name, value in one.known.items()}
                return dataset(fields(columns, machine.element(one.rest)))
    if last in ("from_list", "from_pandas", "DataFrame") and call.all:
        return dataset(machine.element(call.all[0]))
    if last == "from_generator":
        return dataset(machine.element(machine.call(given, [], {})))
    if last in ("concatenate_datasets", "ConcatDataset"):
        return dataset(machine.element(machine.element(given)))
    if last == "TensorDataset":
        return dataset(some(Value(frozenset().union(*map(deep, call.positional)))))
    if call.receiver is None:
        return None
    if not any(isinstance(one, Foreign) and "rows" in one.attributes for one in call.receiver.things):
        return None
    rows = machine.element(call.receiver)
    if last == "map":
        return dataset(_mapped(rows, machine.call(given, [rows], {})))
    if last == "filter":
        return dataset(machine.guarded(rows, deep(machine.call(given, [rows], {}))))
    if last in SAME:
        return call.receiver
    return None


def dataset(rows: Value) -> Value:
    return thing(Foreign("dataset", attributes={"rows": rows}))


def _mapped(rows: Value, new: Value) -> Value:
    """What a function gives for a row is added to the row."""
    before = next((one for one in rows.things if isinstance(one, Fields)), None)
    after = next((one for one in new.things if isinstance(one, Fields)), None)
    if after is None:
        return Value(rows.marks | deep(new), things=rows.things)
    known = {**(before.known if before else {}), **after.known}
    rest = before.rest if before else Value(rows.marks)
    return Value(new.marks, things=fields(known, rest).things)


def _loader(machine: Core, call: Call) -> Value:
    rows = machine.element(call.positional[0] if call.positional else call.keywords.get("dataset", NOTHING))
    collate = call.argument("collate_fn")
    if collate is not None and any(not isinstance(one, Foreign) for one in collate.things):
        rows = machine.call(collate, [some(rows)], {})
    return thing(Foreign("loader", attributes={"rows": rows}))
