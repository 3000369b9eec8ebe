/** The child's end of the channel to the host agent, which forked it. */

/** The process ends when the channel closes, so it never outlives the host agent. */
export function endWithParent(): void {
  process.on('disconnect', () => process.exit(0))
  ignoreTerminalSignals()
}

/** Ctrl-C is meant for the host agent, which closes the channel when it no longer needs the child. */
export function ignoreTerminalSignals(): void {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
}

/** Does nothing when the channel is closed: the process is about to end. */
export function sendToParent(message: object): void {
  if (process.connected) process.send!(message, undefined, undefined, () => {})
}
