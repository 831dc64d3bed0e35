"""The application `adaptive-smoothing app`: attack an image in a browser, and move alpha.

`subject` is the model, `pictures` reads image files, and `session` computes: a state goes in, a state comes out. `html`
writes what is shown. Only `layout` and `server` need Gradio.
"""
