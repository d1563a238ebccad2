"""The Open Inference Protocol v2 over HTTP, as KServe and Triton speak it: one file a concern.

It serves the graphs of stateless models as they are, tensors in and tensors out, without a
tokenizer, an image recipe or a task. Generators, text and pictures have the other APIs. Decision
D106.
"""
