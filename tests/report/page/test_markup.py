"""Texts and tables as HTML."""

from adaptive_smoothing.report.page.markup import NO_BREAK, html_text, table_markup
from adaptive_smoothing.report.tables import Table


def test_lines_do_not_break_inside_a_number_or_an_option():
    text = html_text("with 91.2 % (89.1 to 93.1) on 800 images at α = 0.753; run evaluate with --attack adaptive")
    assert text.replace(NO_BREAK, "_") == (
        "with 91.2_% (89.1_to_93.1) on 800 images at α_=_0.753; run evaluate with <code>--attack</code> adaptive"
    )


def test_tables_are_escaped_and_can_be_scrolled():
    table = Table("<T> & t", ("", "<c>"), (("<r>", "1 %"), ("s", '"2"')), "<n>")
    assert table_markup(table).replace(NO_BREAK, "_") == (
        '<figure class="table"><figcaption>&lt;T&gt; &amp; t</figcaption>'
        '<div class="wide" tabindex="0" role="region" aria-label="&lt;T&gt; &amp; t">'
        '<table><thead><tr><th scope="col"></th><th scope="col">&lt;c&gt;</th></tr></thead><tbody>\n'
        '<tr><th scope="row">&lt;r&gt;</th><td>1_%</td></tr>\n'
        '<tr><th scope="row">s</th><td>&quot;2&quot;</td></tr>\n'
        '</tbody></table></div><p class="note">&lt;n&gt;</p></figure>'
    )
