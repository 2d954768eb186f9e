"""Reading weights from safetensors files straight to the place where they are used."""
