/** The messages between the host agent and the VMM launcher, as JSON over Node's channel. */

export type LaunchFile = {
  fd: number
  path: string
  flags: 'r' | 'r+' | 'w'
}

export type LaunchRequest = {
  /** The slot whose tap the program gets as descriptor 3: `-netdev tap,id=n0,fd=3`. A tool has none. */
  slot?: number
  command: string
  args: readonly string[]
  uid: number
  gid: number
  env: Record<string, string>
  cwd?: string
  /** The files that the output is appended to. Without `stdoutPath` stdout is discarded; stdin is empty. */
  stdoutPath?: string
  stderrPath: string
  /** Further files that the program gets open, from descriptor 4 on, or from 3 on without a slot. */
  files?: readonly LaunchFile[]
  /**
   * The command is the jail, which starts another program and reports its pid on this descriptor (jail/src/main.rs). The
   * other program becomes a child of the launcher.
   */
  reportFd?: number
}

export type LauncherCalls = {
  /** Answered when the launcher is the only one of its instance: the one of a killed host agent has exited. */
  ready: () => null
  spawn: (request: LaunchRequest) => { pid: number }
}

export type ProgramExit = { pid: number; code: number | null; signal: NodeJS.Signals | null }

/** Sent while the launcher runs. A program outlives the launcher, so its user watches the program as well. */
export type LauncherNotice = { exited: ProgramExit }
