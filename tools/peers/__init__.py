"""`make peers`: our quantisation, adapters and 8-bit optimizer beside those of bitsandbytes, peft and torchao."""
