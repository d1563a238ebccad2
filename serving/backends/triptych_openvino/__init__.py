"""The `triptych_openvino` backend: stateless graphs on the CPU, run by OpenVINO."""
