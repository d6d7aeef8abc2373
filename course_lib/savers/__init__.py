"""Ways to keep fewer bytes on one device; whoever shares a model among ranks finds it as they leave it."""
