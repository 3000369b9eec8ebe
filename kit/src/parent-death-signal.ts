/** The kernel sends `signal` to the program when the thread that started it ends, for any reason. */
export function withParentDeathSignal(signal: NodeJS.Signals, command: string, args: string[]): [string, string[]] {
  return ['setpriv', ['--pdeathsig', signal.replace('SIG', ''), '--', command, ...args]]
}
