"""Documents as texts to translate: what is text in them, and where markup belongs afterwards.

A format reads a document into segments and writes it again with the segments translated;
`placement` decides which words of a translation an inline element encloses. Nothing here
translates.
"""
