/** What a Dockerfile says, instruction by instruction, before variables are replaced. */
import type { Heredoc } from './heredocs.ts'
import type { Directives } from './statements.ts'

export type Dockerfile = { directives: Directives; instructions: Instruction[] }

export type Instruction = Position & InstructionBody
export type InstructionName = Instruction['name']
export type InstructionOf<Name extends InstructionName> = Extract<Instruction, { name: Name }>

type Position = {
  /** Counted from 1. */
  line: number
  endLine: number
  /** The instruction in one line, without its heredocs, for logs. */
  text: string
}

/** The shell form is one text for the shell that SHELL chose; the exec form is the program and its arguments. */
export type Command = { form: 'shell'; script: string } | { form: 'exec'; argv: string[] }

type Pair = { name: string; value: string }

export type InstructionBody =
  | { name: 'FROM'; image: string; platform: string | undefined; stage: string | undefined }
  | { name: 'ARG'; args: { name: string; value: string | undefined }[] }
  | { name: 'ENV'; pairs: Pair[] }
  | { name: 'LABEL'; pairs: Pair[] }
  | {
      name: 'RUN'
      command: Command
      heredocs: Heredoc[]
      mounts: string[]
      devices: string[]
      network: string | undefined
      security: string | undefined
    }
  | { name: 'CMD'; command: Command }
  | { name: 'ENTRYPOINT'; command: Command }
  | { name: 'SHELL'; argv: string[] }
  | { name: 'WORKDIR'; path: string }
  | { name: 'USER'; user: string }
  | ({ name: 'COPY'; from: string | undefined; keepsParents: boolean } & Copying)
  | ({ name: 'ADD'; checksum: string | undefined; keepsGitDir: boolean; unpacks: boolean | undefined } & Copying)
  | { name: 'EXPOSE'; ports: string[] }
  | { name: 'VOLUME'; paths: string[] }
  | { name: 'STOPSIGNAL'; signal: string }
  | { name: 'HEALTHCHECK'; check: Healthcheck | 'NONE' }
  | { name: 'MAINTAINER'; maintainer: string }
  | { name: 'ONBUILD'; trigger: string }

export type Copying = {
  sources: (string | Heredoc)[]
  destination: string
  chown: string | undefined
  chmod: string | undefined
  isLinked: boolean
  excludes: string[]
}

/** What is absent has Docker's default. */
export type Healthcheck = {
  command: Command
  intervalMs: number | undefined
  timeoutMs: number | undefined
  startPeriodMs: number | undefined
  startIntervalMs: number | undefined
  retries: number | undefined
}
