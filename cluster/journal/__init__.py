"""The journal of resumable streams: requests and events in Redis, written before they are sent."""
