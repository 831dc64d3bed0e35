from rich.console import Console

from adaptive_smoothing.report.tables import Table, rich_table


def test_a_name_is_never_shortened_in_the_terminal() -> None:
    table = Table("Models", ("name", "of", "clean"), (("a-model-with-a-name", "first\nsecond", "90.00 %"),), "A note.")
    console = Console(width=32, record=True, file=None)
    with console.capture() as printed:
        console.print(rich_table(table))
    lines = printed.get().splitlines()
    assert lines[0].strip() == "Models" and lines[-1].strip() == "A note."
    assert any("a-model-with-a-name" in line for line in lines)
    assert "".join(line[19:] for line in lines).count("…") == 0
