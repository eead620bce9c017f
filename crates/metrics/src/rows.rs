table! {
    "Server: requests": {
        /// How long requests took that the server has answered, from their arrival to their reply,
        /// without the time for which they waited for leases of others, and locks that had to
        /// wait. Its count is the number of requests.
        SERVER_OPERATION_SECONDS: Histogram = "aqueduct_server_operation_seconds", Seconds, [OPERATION];
        /// Requests that the server has answered with an error.
        SERVER_ERRORS: Counter = "aqueduct_server_operation_errors_total", None, [OPERATION];
        /// Requests that were sent again and answered from the memory of their slot.
        SERVER_REPEATED: Counter = "aqueduct_server_replies_repeated_total", None, [];
        /// Requests that are being executed.
        SERVER_EXECUTING: Gauge = "aqueduct_server_requests_executing", None, [];
        /// Requests that wait for what other clients hold back.
        SERVER_LOOKING: Gauge = "aqueduct_server_requests_looking", None, [];
    }
    "Server: exports and clients": {
        /// Requests for an export.
        EXPORT_OPERATIONS: Counter = "aqueduct_export_operations_total", None, [EXPORT];
        /// Bytes that were read from an export.
        EXPORT_BYTES_READ: Counter = "aqueduct_export_read_bytes_total", Bytes, [EXPORT];
        /// Bytes that were written to an export.
        EXPORT_BYTES_WRITTEN: Counter = "aqueduct_export_written_bytes_total", Bytes, [EXPORT];
        /// How long requests for an export took, all together, from their arrival to their reply,
        /// without the time for which they waited for leases of others. In a second it grows by
        /// the requests that were under way.
        EXPORT_SERVED_SECONDS: Counter = "aqueduct_export_served_seconds_total", Seconds, [EXPORT];
        /// How long requests for an export waited for leases of others, all together.
        EXPORT_LEASE_WAIT_SECONDS: Counter = "aqueduct_export_lease_wait_seconds_total", Seconds, [EXPORT];
        /// Requests to write.
        EXPORT_WRITES: Counter = "aqueduct_export_writes_total", None, [EXPORT];
        /// Requests to write that began where the one before had ended: a client might have
        /// gathered them.
        EXPORT_WRITES_CONTINUED: Counter = "aqueduct_export_writes_continued_total", None, [EXPORT];
        /// Reads and writes that waited for the rate to which their export is held.
        EXPORT_THROTTLED: Counter = "aqueduct_export_throttled_total", None, [EXPORT];
        /// Files that are being read ahead.
        EXPORT_READ_AHEAD_STREAMS: Gauge = "aqueduct_export_read_ahead_streams", None, [EXPORT];
        /// How long the backing file system takes for what is not in memory, as measured lately.
        EXPORT_READ_AHEAD_LATENCY_SECONDS: Gauge = "aqueduct_export_read_ahead_latency_seconds", Seconds, [EXPORT];
        /// Reads that had to wait for the backing file system.
        EXPORT_READ_AHEAD_WAITS: Counter = "aqueduct_export_read_ahead_waits_total", None, [EXPORT];
        /// Bytes that were asked for before a client did.
        EXPORT_READ_AHEAD_BYTES: Counter = "aqueduct_export_read_ahead_bytes_total", Bytes, [EXPORT];
        /// Bytes that were read ahead and then read.
        EXPORT_READ_AHEAD_BYTES_USED: Counter = "aqueduct_export_read_ahead_used_bytes_total", Bytes, [EXPORT];
        /// Bytes that were read ahead for nothing.
        EXPORT_READ_AHEAD_BYTES_WASTED: Counter = "aqueduct_export_read_ahead_wasted_bytes_total", Bytes, [EXPORT];
        /// Requests of a client.
        CLIENT_OPERATIONS: Counter = "aqueduct_server_client_operations_total", None, [CLIENT];
        /// Bytes that a client has read.
        CLIENT_BYTES_READ: Counter = "aqueduct_server_client_read_bytes_total", Bytes, [CLIENT];
        /// Bytes that a client has written.
        CLIENT_BYTES_WRITTEN: Counter = "aqueduct_server_client_written_bytes_total", Bytes, [CLIENT];
        /// How long requests of a client took, all together, as of an export.
        CLIENT_SERVED_SECONDS: Counter = "aqueduct_server_client_served_seconds_total", Seconds, [CLIENT];
        /// How long requests of a client waited for leases of others, all together.
        CLIENT_LEASE_WAIT_SECONDS: Counter = "aqueduct_server_client_lease_wait_seconds_total", Seconds, [CLIENT];
        /// Requests that were made for a job of a batch system.
        JOB_OPERATIONS: Counter = "aqueduct_server_job_operations_total", None, [JOB];
        /// Bytes that were read for a job.
        JOB_BYTES_READ: Counter = "aqueduct_server_job_read_bytes_total", Bytes, [JOB];
        /// Bytes that were written for a job.
        JOB_BYTES_WRITTEN: Counter = "aqueduct_server_job_written_bytes_total", Bytes, [JOB];
        /// How long requests for a job took, all together, as of an export.
        JOB_SERVED_SECONDS: Counter = "aqueduct_server_job_served_seconds_total", Seconds, [JOB];
    }
    "Server: sessions and connections": {
        /// Sessions, with a connection or without.
        SERVER_SESSIONS: Gauge = "aqueduct_server_sessions", None, [];
        /// Sessions that have begun.
        SERVER_SESSIONS_BEGUN: Counter = "aqueduct_server_sessions_begun_total", None, [];
        /// Sessions that were ended because their client did not come back.
        SERVER_SESSIONS_FORSAKEN: Counter = "aqueduct_server_sessions_forsaken_total", None, [];
        /// Sessions that do not outlive the process since their file could not be written.
        SERVER_SESSIONS_UNKEPT: Counter = "aqueduct_server_sessions_unkept_total", None, [];
        /// Slots that were given to sessions, of each class.
        SERVER_SLOTS: Gauge = "aqueduct_server_slots", None, [];
        /// Writes to the files in which sessions outlive the process.
        SERVER_JOURNAL_WRITES: Counter = "aqueduct_server_journal_writes_total", None, [];
        /// How long those of them took that were on the disk before the request went on.
        SERVER_JOURNAL_SYNC_SECONDS: Histogram = "aqueduct_server_journal_sync_seconds", Seconds, [];
        /// Connections, with a session or without.
        SERVER_CONNECTIONS: Gauge = "aqueduct_server_connections", None, [];
        /// Connections that were taken.
        SERVER_CONNECTIONS_ACCEPTED: Counter = "aqueduct_server_connections_accepted_total", None, [];
        /// Connections that were refused since there were too many.
        SERVER_CONNECTIONS_REFUSED: Counter = "aqueduct_server_connections_refused_total", None, [];
        /// Connections that ended since nothing was heard of their client any more.
        SERVER_CONNECTIONS_VANISHED: Counter = "aqueduct_server_connections_vanished_total", None, [];
        /// Memory of frames that are not whole yet, or not executed.
        SERVER_FRAME_MEMORY: Gauge = "aqueduct_server_frame_memory_bytes", Bytes, [];
        /// Memory of replies that their clients have not read.
        SERVER_UNSENT_MEMORY: Gauge = "aqueduct_server_unsent_memory_bytes", Bytes, [];
        /// Connections that wait for memory for a frame.
        SERVER_FRAME_WAITERS: Gauge = "aqueduct_server_frame_waiters", None, [];
    }
    "Connections": {
        /// Frames that have come. Labels: the side that counts, `server` or `client`, and the kind
        /// of connection, `control`, `bulk`, or `unjoined` before there is a session.
        NET_FRAMES_RECEIVED: Counter = "aqueduct_net_frames_received_total", None, [SIDE, CONNECTION];
        /// Bytes that have come.
        NET_BYTES_RECEIVED: Counter = "aqueduct_net_received_bytes_total", Bytes, [SIDE, CONNECTION];
        /// System calls by which they came.
        NET_RECEIVES: Counter = "aqueduct_net_receives_total", None, [SIDE, CONNECTION];
        /// Frames that were queued to be sent.
        NET_FRAMES_SENT: Counter = "aqueduct_net_frames_sent_total", None, [SIDE, CONNECTION];
        /// Bytes that have gone.
        NET_BYTES_SENT: Counter = "aqueduct_net_sent_bytes_total", Bytes, [SIDE, CONNECTION];
        /// System calls by which they went.
        NET_SENDS: Counter = "aqueduct_net_sends_total", None, [SIDE, CONNECTION];
    }
    "Client: the session": {
        /// Requests that were begun.
        SESSION_OPERATIONS: Counter = "aqueduct_session_operations_total", None, [];
        /// How long the server took to answer requests, the network included, from when they were
        /// sent; but not for locks that had to wait.
        SESSION_REQUEST_SECONDS: Histogram = "aqueduct_session_request_seconds", Seconds, [OPERATION];
        /// Requests that the server answered with an error.
        SESSION_ERRORS: Counter = "aqueduct_session_request_errors_total", None, [OPERATION];
        /// Requests that were sent again since their connection broke.
        SESSION_REPEATED: Counter = "aqueduct_session_requests_repeated_total", None, [];
        /// Payload that came.
        SESSION_BYTES_READ: Counter = "aqueduct_session_read_bytes_total", Bytes, [];
        /// Payload that the server took.
        SESSION_BYTES_WRITTEN: Counter = "aqueduct_session_written_bytes_total", Bytes, [];
        /// How often lost connections were made again.
        SESSION_RECONNECTS: Counter = "aqueduct_session_reconnects_total", None, [];
        /// Connections to the server.
        SESSION_CONNECTIONS: Gauge = "aqueduct_session_connections", None, [];
        /// Slots that requests under way have.
        SESSION_SLOTS_LENT: Gauge = "aqueduct_session_slots_lent", None, [];
        /// How long requests waited for a slot, of those that found none free.
        SESSION_SLOT_WAIT_SECONDS: Histogram = "aqueduct_session_slot_wait_seconds", Seconds, [];
        /// How long requests waited at the server before it began with them, as it says, where
        /// the client asks for that: for copies.
        SESSION_QUEUE_SECONDS: Histogram = "aqueduct_session_queue_seconds", Seconds, [];
        /// What was written and is kept until it is stable on the server.
        SESSION_REPLAY_BYTES: Gauge = "aqueduct_session_replay_bytes", Bytes, [];
        /// The most that is kept of it.
        SESSION_REPLAY_WINDOW: Gauge = "aqueduct_session_replay_window_bytes", Bytes, [];
        /// Bulk data that came over a rail.
        SESSION_RAIL_BYTES_READ: Counter = "aqueduct_session_rail_read_bytes_total", Bytes, [RAIL];
        /// Bulk data that went over a rail.
        SESSION_RAIL_BYTES_WRITTEN: Counter = "aqueduct_session_rail_written_bytes_total", Bytes, [RAIL];
        /// The round trip of a rail, as the kernel measures it.
        SESSION_RAIL_ROUND_TRIP_SECONDS: Gauge = "aqueduct_session_rail_round_trip_seconds", Seconds, [RAIL];
        /// 1 for a rail that has no connection; nothing is told of those that have.
        SESSION_RAIL_DOWN: Gauge = "aqueduct_session_rail_down", None, [RAIL];
        /// How often a rail was down.
        SESSION_RAIL_OUTAGES: Counter = "aqueduct_session_rail_outages_total", None, [RAIL];
    }
    "Client: what is kept and held back under leases": {
        /// Requests that were answered from what is kept.
        CACHE_HITS: Counter = "aqueduct_cache_hits_total", None, [];
        /// Requests that the server had to be asked.
        CACHE_MISSES: Counter = "aqueduct_cache_misses_total", None, [];
        /// Leases that the server asked for.
        CACHE_RECALLS: Counter = "aqueduct_cache_recalls_total", None, [];
        /// Inodes of which something is kept.
        CACHE_INODES: Gauge = "aqueduct_cache_inodes", None, [];
        /// What is kept.
        CACHE_BYTES: Gauge = "aqueduct_cache_bytes", Bytes, [];
        /// Writes that were answered before the server had them.
        WRITEBACK_WRITES: Counter = "aqueduct_writeback_writes_total", None, [];
        /// Changes of attributes that were.
        WRITEBACK_ATTRIBUTES: Counter = "aqueduct_writeback_attributes_total", None, [];
        /// Requests by which both came to the server.
        WRITEBACK_REQUESTS: Counter = "aqueduct_writeback_requests_total", None, [];
        /// Files of which something is held back.
        WRITEBACK_FILES: Gauge = "aqueduct_writeback_files", None, [];
        /// What is held back.
        WRITEBACK_BYTES: Gauge = "aqueduct_writeback_held_bytes", Bytes, [];
    }
    "Mount: the kernel's requests": {
        /// How long requests of the kernel took from their arrival to their answer, what they
        /// waited for included, of those that were not forgets or interrupts. Its count is the
        /// number of requests.
        FUSE_REQUEST_SECONDS: Histogram = "aqueduct_fuse_request_seconds", Seconds, [OPCODE];
        /// Requests of the kernel that were answered with an error.
        FUSE_ERRORS: Counter = "aqueduct_fuse_request_errors_total", None, [OPCODE];
        /// Requests of the kernel by the way they came: `io_uring` or `/dev/fuse`.
        FUSE_UPCALLS: Counter = "aqueduct_fuse_upcalls_total", None, [TRANSPORT];
        /// Bytes that the kernel has read.
        FUSE_BYTES_READ: Counter = "aqueduct_fuse_read_bytes_total", Bytes, [];
        /// Bytes that the kernel has written.
        FUSE_BYTES_WRITTEN: Counter = "aqueduct_fuse_written_bytes_total", Bytes, [];
        /// Inodes that the kernel knows.
        FUSE_INODES: Gauge = "aqueduct_fuse_inodes", None, [];
        /// Inodes of which the kernel said that it does not know them any more.
        FUSE_FORGOTTEN: Counter = "aqueduct_fuse_forgotten_total", None, [];
        /// Requests whose caller was interrupted.
        FUSE_INTERRUPTS: Counter = "aqueduct_fuse_interrupts_total", None, [];
        /// What the kernel was told to drop: an `inode` or its pages, an `entry`, a `delete`d
        /// name, all names (`epoch`), or to ask for a request (`retrieve`).
        FUSE_NOTIFICATIONS: Counter = "aqueduct_fuse_notifications_total", None, [NOTIFICATION];
    }
    "Server: leases": {
        /// Leases that clients hold.
        SERVER_LEASES: Gauge = "aqueduct_server_leases", None, [];
        /// Leases that were granted.
        SERVER_LEASES_GRANTED: Counter = "aqueduct_server_leases_granted_total", None, [];
        /// Leases that clients were asked to give back.
        SERVER_LEASES_RECALLED: Counter = "aqueduct_server_leases_recalled_total", None, [];
        /// Leases that clients have given back, asked or not.
        SERVER_LEASES_RETURNED: Counter = "aqueduct_server_leases_returned_total", None, [];
        /// Exclusive leases that were taken from a client that did not answer: what it held back
        /// under them is lost.
        SERVER_LEASES_BROKEN: Counter = "aqueduct_server_leases_broken_total", None, [];
        /// Requests that wait for leases of others.
        SERVER_LEASE_WAITERS: Gauge = "aqueduct_server_lease_waiters", None, [];
        /// How long requests waited for leases of others, for those that did.
        SERVER_LEASE_WAIT_SECONDS: Histogram = "aqueduct_server_lease_wait_seconds", Seconds, [];
        /// Inodes that others than clients have changed, as the server's kernel told.
        SERVER_OUTSIDE_CHANGES: Counter = "aqueduct_server_outside_changes_total", None, [];
        /// How often more was changed by others than could be told.
        SERVER_OUTSIDE_OVERFLOWS: Counter = "aqueduct_server_outside_overflows_total", None, [];
    }
    "Router": {
        /// Bytes that were passed on.
        ROUTER_BYTES: Counter = "aqueduct_router_passed_bytes_total", Bytes, [SCOPE, NAME, WAY];
        /// Flows that are open.
        ROUTER_FLOWS: Gauge = "aqueduct_router_flows", None, [SCOPE, NAME];
        /// Flows that were opened.
        ROUTER_FLOWS_OPENED: Counter = "aqueduct_router_flows_opened_total", None, [SCOPE, NAME];
        /// Flows that were not let in, or whose next hop could not be had.
        ROUTER_FLOWS_REFUSED: Counter = "aqueduct_router_flows_refused_total", None, [SCOPE, NAME];
        /// How long what had come waited for room, at who made the flow (side `initiator`) or at
        /// its next hop (`next`).
        ROUTER_BLOCKED_SECONDS: Counter = "aqueduct_router_blocked_seconds_total", Seconds, [SCOPE, NAME, SIDE];
        /// Memory that buffers and pipes may take when all flows are stalled.
        ROUTER_MEMORY: Gauge = "aqueduct_router_memory_bytes", Bytes, [];
        /// Pipes that have bytes in them.
        ROUTER_PIPES: Gauge = "aqueduct_router_pipes_lent", None, [];
    }
}
