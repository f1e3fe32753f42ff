"""The Adult data: complete, and as published."""

import pyarrow

import dpmcmc


def test_the_table():
    """Counts that the source publishes: 48,842 instances, 11,687 of them above 50,000 dollars."""
    table = dpmcmc.data.adult_arrow()
    assert isinstance(table, pyarrow.Table)
    assert (table.num_rows, table.num_columns) == (48_842, 14)
    assert table["income"].to_pylist().count(True) == 11_687
    assert table["sex"].to_pylist().count("Female") == 16_192
    missing = {name: table[name].null_count for name in table.column_names if table[name].null_count}
    assert missing == {"workclass": 2799, "occupation": 2809, "native_country": 857}
    assert table["age"].to_pylist()[:3] == [39, 50, 38]


def test_the_schema_covers_it():
    """Bounds and levels of the description leave nothing out: no value is clamped, and unknown is what is missing."""
    table, raw = dpmcmc.data.adult(), dpmcmc.data.adult_arrow()
    assert (table.num_records, table.unit) == (48_842, None)
    assert list(table.schema.names) == raw.column_names
    for field in table.schema.fields:
        clean, entries = table.clean([field.name])[field.name], raw[field.name].to_pylist()
        if field.kind == "category":
            assert field.missing == ("own level" if None in entries else "record counts as nothing")
            assert [field.level_names[int(index)] for index in clean] == [entry or "missing" for entry in entries]
        else:
            assert clean.tolist() == entries
