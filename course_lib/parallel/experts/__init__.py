"""Expert parallelism: ranks that share the experts of a layer, and send tokens to them."""
