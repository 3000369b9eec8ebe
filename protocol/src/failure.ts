/**
 * Error codes of the API and their HTTP status (docs/api.md#errors). A code is stable; clients find it inside the data
 * of the `fail` envelope.
 *
 * These belong to parts of the API that are not implemented, so they are never sent: desktop_unavailable,
 * desktop_action_failed, screen_conflict, screenshot_busy and desktop_tools_unavailable (desktop); ingress_disabled.
 */
export const FAILURE_STATUS = {
  validation_failed: 400,
  plan_limit: 400,
  unauthorized: 401,
  insufficient_credit: 402,
  token_not_allowed: 403,
  operator_required: 403,
  origin_not_allowed: 403,
  emulation_refused: 403,
  not_found: 404,
  file_not_found: 404,
  sandbox_not_running: 404,
  process_not_found: 404,
  wait_timeout: 408,
  request_timeout: 408,
  exec_interrupted: 409,
  wrong_state: 409,
  name_in_use: 409,
  path_in_use: 409,
  still_attached: 409,
  has_members: 409,
  token_exists: 409,
  token_lifecycle: 409,
  idempotency_key_reused: 409,
  wrong_process_kind: 409,
  process_exited: 409,
  stdin_closed: 409,
  desktop_unavailable: 409,
  desktop_action_failed: 409,
  ingress_disabled: 409,
  screen_conflict: 409,
  output_offset_expired: 410,
  upgrade_required: 426,
  cap_reached: 429,
  daily_cap_reached: 429,
  build_limit: 429,
  rate_limited: 429,
  process_limit_reached: 429,
  screenshot_busy: 429,
} as const

export type FailureCode = keyof typeof FAILURE_STATUS

/** Failures of the service. The `error` envelope carries the message; the cause is only logged. */
export const SERVER_FAULT_STATUS = {
  internal: 500,
  desktop_tools_unavailable: 501,
  upstream_unavailable: 502,
  unavailable: 503,
} as const

export type ServerFault = keyof typeof SERVER_FAULT_STATUS
