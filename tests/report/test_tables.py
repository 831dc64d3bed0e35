from rich.console import Console

from adaptive_smoothing.report.tables import Table, rich_table


def test_names_and_lines_are_not_broken_on_a_narrow_terminal() -> None:
    row = ("a-model-with-a-name", "the-first\nthe-second", "two words")
    console = Console(width=40)
    with console.capture() as printed:
        console.print(rich_table(Table("Models", ("name", "of", "alpha"), (row,), "A note.")))
    title, _, _, _, *rows, _, note = [line.split() for line in printed.get().splitlines()]
    assert title == ["Models"] and note == ["A", "note."]
    assert rows == [["a-model-with-a-name", "the-first", "two"], ["the-second", "words"]]


def test_a_narrow_terminal_breaks_long_titles_and_not_numbers() -> None:
    rows = (("diversified PGD, worst-case g (smoothed surrogate)", "12", "100.00 %"), ("clean", "0", "100.00 %"))
    console = Console(width=50)
    with console.capture() as printed:
        console.print(rich_table(Table("Accuracy", ("", "images fooled", "accuracy left"), rows)))
    lines = [line.rstrip() for line in printed.get().splitlines()]
    assert sum(line.endswith("100.00 %") for line in lines) == 2 and max(map(len, lines)) <= 50
