/**
 * Replays the instructions of one stage: which steps change the disk, and what the image says in the end.
 *
 * Instructions change a state (variables, user, working directory, shell), and a step records the state it runs with, so
 * that it can be executed and cached without the instructions before it.
 *
 * ENV and ARG share one namespace, in which the later one wins; of ARG nothing remains in the image. All values of an ENV
 * are replaced with the variables before it, those of an ARG one after the other. An ARG without a value takes the global
 * one (stages.ts), and is otherwise unset. Variables are replaced in ARG, ENV, LABEL, WORKDIR, USER, COPY, ADD, EXPOSE,
 * VOLUME and STOPSIGNAL. In RUN, CMD, ENTRYPOINT, SHELL and HEALTHCHECK they are left to the shell.
 *
 * Flags of RUN (--mount, --network, …) and what follows from them are up to the caller.
 */
import { constants } from 'node:os'
import path from 'node:path/posix'
import { locate, Problem, quote } from './errors.ts'
import { type Heredoc, parseHeredocWord } from './heredocs.ts'
import type { ImageConfig, ImageHealthcheck } from './image.ts'
import type { Command, Healthcheck, InstructionOf } from './instruction.ts'
import { type PortRange, parsePortRange } from './ports.ts'
import { type Scope, type Stage, type StageInstruction, wordRules } from './stages.ts'
import type { CopyStep, RunStep, Step } from './step.ts'
import { expandWord, splitText } from './words.ts'

/** Bounds the memory of a plan, in which every step has its environment. */
const VARIABLES_MAX = 256
/** Of Linux, without the end mark. */
const PATH_MAX = 4095
/** Where a heredoc with a `#!` line is placed while it runs: in memory, outside the image. */
const SCRIPTS_FOLDER = '/dev/pipes'

/** `base` is what the image says that FROM names. Throws a DockerfileError. */
export function evaluateStage(scope: Scope, base: ImageConfig, { instructions }: Stage): EvaluatedStage {
  const replay = new Replay(scope, base)
  for (const instruction of instructions) locate(instruction, () => replay.apply(instruction))
  return { steps: replay.steps, image: replay.image() }
}

export type EvaluatedStage = { steps: Step[]; image: ImageConfig }

class Replay {
  readonly steps: Step[] = []
  readonly #scope: Scope
  readonly #image: Omit<ImageConfig, 'env' | 'labels'>
  /** What ENV sets, which is all that the image keeps. */
  readonly #env: Map<string, string>
  readonly #labels: Map<string, string>
  /** What ENV and ARG set. */
  readonly #variables: Map<string, string>
  /** `#variables` as an object, shared by all steps until it changes. */
  #snapshot: Record<string, string> | undefined
  #hasCmd = false

  constructor(scope: Scope, { env, labels, ...base }: ImageConfig) {
    this.#scope = scope
    this.#image = { ...base, ports: [...base.ports], volumes: [...base.volumes] }
    this.#env = new Map(Object.entries(env))
    this.#labels = new Map(Object.entries(labels))
    this.#variables = new Map(this.#env)
  }

  image(): ImageConfig {
    return { ...this.#image, env: Object.fromEntries(this.#env), labels: Object.fromEntries(this.#labels) }
  }

  apply(instruction: StageInstruction): void {
    const image = this.#image
    switch (instruction.name) {
      case 'ARG':
        this.#setArgs(instruction)
        break
      case 'ENV':
        this.#setEnv(instruction)
        break
      case 'LABEL':
        for (const { name, value } of this.#expandPairs(instruction.pairs)) this.#labels.set(name, value)
        break
      case 'RUN':
        this.steps.push({ ...this.#state(instruction), kind: 'run', ...this.#program(instruction) })
        break
      case 'WORKDIR':
        this.#setWorkdir(instruction)
        break
      case 'USER':
        image.user = this.#expand(instruction.user)
        break
      case 'SHELL':
        image.shell = instruction.argv
        break
      case 'COPY':
      case 'ADD':
        this.steps.push(this.#copy(instruction))
        break
      case 'CMD':
        image.cmd = this.#argv(instruction.command)
        this.#hasCmd = true
        break
      case 'ENTRYPOINT':
        image.entrypoint = this.#argv(instruction.command)
        // The CMD of the base was meant for another program.
        if (!this.#hasCmd) image.cmd = undefined
        break
      case 'EXPOSE':
        image.ports.push(...instruction.ports.flatMap((word) => this.#expandPorts(word)))
        break
      case 'VOLUME':
        image.volumes.push(...instruction.paths.map((one) => this.#expandNonEmpty(one, 'path')))
        break
      case 'STOPSIGNAL':
        image.stopSignal = checkSignal(this.#expand(instruction.signal))
        break
      case 'HEALTHCHECK':
        image.healthcheck = instruction.check === 'NONE' ? 'NONE' : this.#healthcheck(instruction.check)
        break
      // Neither changes the image that is built.
      case 'MAINTAINER':
      case 'ONBUILD':
        break
    }
  }

  #setArgs({ args }: InstructionOf<'ARG'>): void {
    for (const { name, value } of args) {
      const effective = value === undefined ? this.#scope.globalArgs.get(name) : this.#expand(value)
      if (effective !== undefined) this.#setVariable(name, effective)
    }
  }

  #setEnv({ pairs }: InstructionOf<'ENV'>): void {
    for (const { name, value } of this.#expandPairs(pairs)) {
      if (name === '') throw new Problem('a name is empty after its variables are replaced')
      this.#setVariable(name, value)
      this.#env.set(name, value)
    }
  }

  #setVariable(name: string, value: string): void {
    this.#variables.set(name, value)
    this.#snapshot = undefined
    if (this.#variables.size > VARIABLES_MAX) {
      throw new Problem(`there are more than ${VARIABLES_MAX} variables; remove ENV or ARG instructions`)
    }
  }

  #setWorkdir(instruction: InstructionOf<'WORKDIR'>): void {
    this.#image.workdir = path.resolve(this.#image.workdir, this.#expand(instruction.path))
    if (this.#image.workdir.length > PATH_MAX) throw new Problem(`the path is longer than ${PATH_MAX} characters`)
    if (this.#image.workdir !== '/') this.steps.push({ ...this.#state(instruction), kind: 'workdir' })
  }

  #state({ line, text }: StageInstruction) {
    this.#snapshot ??= Object.fromEntries(this.#variables)
    return { line, text, env: this.#snapshot, user: this.#image.user, workdir: this.#image.workdir }
  }

  /**
   * A command that is nothing but a heredoc runs the text of the heredoc: in the shell, or as a program if it begins with
   * `#!`. Heredocs that are part of a longer command are left to the shell.
   */
  #program({ command, heredocs }: InstructionOf<'RUN'>): Pick<RunStep, 'argv' | 'script'> {
    const [document] = heredocs
    if (command.form === 'exec' || document === undefined) return { argv: this.#argv(command), script: undefined }
    if (!parseHeredocWord(command.script)) {
      const script = [command.script, ...heredocs.map(({ content, name }) => content + name)].join('\n')
      return { argv: this.#argv({ form: 'shell', script }), script: undefined }
    }
    const content = contentOf(document)
    if (!content.startsWith('#!')) return { argv: this.#argv({ form: 'shell', script: content }), script: undefined }
    const file = path.join(SCRIPTS_FOLDER, fileNameOf(document))
    return { argv: this.#argv({ form: 'shell', script: file }), script: { path: file, content } }
  }

  #argv(command: Command): string[] {
    return command.form === 'exec' ? command.argv : [...this.#image.shell, command.script]
  }

  #copy(instruction: InstructionOf<'COPY' | 'ADD'>): CopyStep {
    const { sources, chown, chmod } = instruction
    return {
      ...this.#state(instruction),
      kind: instruction.name === 'COPY' ? 'copy' : 'add',
      from: instruction.name === 'COPY' && instruction.from !== undefined ? this.#expand(instruction.from) : undefined,
      sources: sources.flatMap((source) => (typeof source === 'string' ? this.#expand(source) : [])),
      files: sources.flatMap((source) => (typeof source === 'string' ? [] : this.#file(source))),
      destination: this.#destination(this.#expand(instruction.destination)),
      chown: chown === undefined ? undefined : this.#expand(chown),
      chmod: chmod === undefined ? undefined : this.#expand(chmod),
    }
  }

  #file(document: Heredoc): { name: string; content: string } {
    const content = contentOf(document)
    const rules = { ...wordRules(this.#scope, this.#variables), escapeChar: '\\' as const, ignoreQuotes: true }
    return { name: fileNameOf(document), content: document.expands ? expandWord(content, rules) : content }
  }

  #destination(written: string): string {
    const isFolder = written === '' || written === '.' || written.endsWith('/')
    const absolute = path.resolve(this.#image.workdir, written)
    return isFolder && absolute !== '/' ? `${absolute}/` : absolute
  }

  #healthcheck({ command, ...times }: Healthcheck): ImageHealthcheck {
    return { ...times, argv: this.#argv(command) }
  }

  #expand(text: string): string {
    return expandWord(text, wordRules(this.#scope, this.#variables))
  }

  #expandPairs(pairs: { name: string; value: string }[]): { name: string; value: string }[] {
    return pairs.map(({ name, value }) => ({ name: this.#expand(name), value: this.#expand(value) }))
  }

  /** One word may become several ports, or none. */
  #expandPorts(word: string): PortRange[] {
    return splitText(word, wordRules(this.#scope, this.#variables)).words.map(parsePortRange)
  }

  #expandNonEmpty(text: string, what: string): string {
    const expanded = this.#expand(text)
    if (expanded === '') throw new Problem(`${what} ${quote(text)} is empty after its variables are replaced`)
    return expanded
  }
}

/** Only tabs at the start of a line; the lookbehind is the start of the text or of a line. */
const contentOf = ({ content, stripsTabs }: Heredoc): string =>
  stripsTabs ? content.replace(/(?<![^\n])\t+/g, '') : content

/** A delimiter can be any text; as the name of a file it must not leave its folder. */
const fileNameOf = ({ name }: Heredoc): string => (/^[\w.-]+$/.test(name) && !/^\.+$/.test(name) ? name : 'heredoc')

function checkSignal(signal: string): string {
  const name = signal.toUpperCase().replace(/^SIG/, '')
  const isNumber = /^[1-9]\d{0,2}$/.test(name)
  const isKnown = isNumber || Object.hasOwn(constants.signals, `SIG${name}`) || /^RTM(IN|AX)([+-]\d{1,2})?$/.test(name)
  if (!isKnown) throw new Problem(`${quote(signal)} is not a signal such as SIGTERM`)
  return signal
}
