package schedule

// Reserved are the codes of the library's own jobs, which no job of a user may have.
func Reserved() []string {
	return []string{"alert", "lock_timeout_reaper", "order_asset_consistency", "outbox_publisher", "outbox_retention"}
}
