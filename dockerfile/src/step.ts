/** What is done to the disk, one step for each instruction that changes it. A step is complete without those before it. */

export type Step = RunStep | WorkdirStep | CopyStep

type StepState = {
  line: number
  /** The instruction in one line, for logs. */
  text: string
  /** The complete environment: ENV and ARG. */
  env: Record<string, string>
  /** `name`, `name:group` or their numbers; empty means root. */
  user: string
  workdir: string
}

export type RunStep = StepState & {
  kind: 'run'
  /** The shell is part of it. */
  argv: string[]
  /** A program that exists at this path while the step runs. It does not become part of the image. */
  script: { path: string; content: string } | undefined
}

/** Creates the working directory, owned by the user. */
export type WorkdirStep = StepState & { kind: 'workdir' }

export type CopyStep = StepState & {
  kind: 'copy' | 'add'
  /** A stage or an image; undefined means the build context. */
  from: string | undefined
  sources: string[]
  /** Heredocs: files that the Dockerfile contains. */
  files: { name: string; content: string }[]
  /** Absolute. A slash at its end makes it a folder. */
  destination: string
  chown: string | undefined
  chmod: string | undefined
}
