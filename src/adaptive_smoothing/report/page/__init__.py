"""The HTML page of one or several runs: one file that opens offline.

`runs` reads run folders, `dials` computes what the slider shows, `sheets` packs the pictures, `content` gathers
everything as plain data, and `page` writes the file from `template.html`, `page.css` and the scripts.
"""
