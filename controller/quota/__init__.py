"""ResourceQuota for cards: what namespaces may still take (`room`), what can never fit (`admission`), who used what (`model`)."""
