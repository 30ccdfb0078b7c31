"""Publishing records exactly once: the transactional producer, and rows that could not be published."""
