/**
 * Reads a Dockerfile: what each instruction says, with the rules of `docker build` for its syntax and none of our own.
 * What a caller does not want (more than one stage, COPY) is for the caller to refuse.
 */
import { DockerfileError, locate, Problem, quote } from './errors.ts'
import { type Flags, parseFlags } from './flags.ts'
import { parseHeredocWord } from './heredocs.ts'
import type { Command, Copying, Dockerfile, Healthcheck, Instruction, InstructionBody } from './instruction.ts'
import { isSpace } from './space.ts'
import { readStatements, type Statement } from './statements.ts'
import { parseStringArray } from './string-array.ts'
import { suggestInstruction } from './suggest.ts'
import type { EscapeCharacter } from './words.ts'

/** Throws a DockerfileError. */
export function parseDockerfile(text: string): Dockerfile {
  const { directives, statements } = readStatements(text)
  if (statements.length === 0) throw new DockerfileError({ line: 1 }, 'there is no instruction; begin with FROM')
  const instructions = statements.map((statement) =>
    locate(statement, (): Instruction => {
      const { line, endLine, text } = statement
      const body = parseBody(statement, directives.escape)
      checkNoFlags(statement)
      return { line, endLine, text, ...body }
    }),
  )
  checkOrder(instructions)
  return { directives, instructions }
}

/** Only ARG may come before the first FROM. */
function checkOrder(instructions: Instruction[]): void {
  const first = instructions.find(({ name }) => name !== 'ARG')
  if (first === undefined) throw new DockerfileError(instructions[0]!, 'there is no FROM; add one that names the base')
  if (first.name !== 'FROM') throw new DockerfileError(first, 'comes before FROM; begin with FROM')
}

function parseBody(statement: Statement, escapeChar: EscapeCharacter): InstructionBody {
  const { name, rest } = statement
  switch (name) {
    case 'FROM':
      return parseFrom(statement)
    case 'ARG':
      return { name, args: atLeastOne(splitWords(rest, escapeChar)).map(parseArg) }
    case 'ENV':
    case 'LABEL':
      return { name, pairs: parsePairs(rest, escapeChar) }
    case 'RUN':
      return parseRun(statement)
    case 'CMD':
    case 'ENTRYPOINT':
      return { name, command: parseCommand(rest) }
    case 'SHELL':
      return { name, argv: parseShell(rest) }
    case 'WORKDIR':
      return { name, path: needsText(rest, 'a path') }
    case 'USER':
      return { name, user: needsText(rest, 'a user') }
    case 'COPY':
      return parseCopy(statement)
    case 'ADD':
      return parseAdd(statement)
    case 'EXPOSE':
      return { name, ports: atLeastOne(splitBlanks(rest)) }
    case 'VOLUME':
      return { name, paths: parseVolumes(rest) }
    case 'STOPSIGNAL':
      return { name, signal: needsText(rest, 'a signal') }
    case 'HEALTHCHECK':
      return { name, check: parseHealthcheck(statement) }
    case 'MAINTAINER':
      return { name, maintainer: needsText(rest, 'a name') }
    case 'ONBUILD':
      return { name, trigger: parseTrigger(statement) }
    default:
      throw unknownInstruction(statement)
  }
}

/** Named as written: it is often a word of the line before. */
function unknownInstruction({ line, name, text }: Statement): DockerfileError {
  const [written = ''] = splitBlanks(text)
  return new DockerfileError({ line, name: written }, `unknown instruction; ${suggestInstruction(name)}`)
}

/** Their own functions read the flags. */
const WITH_FLAGS = ['FROM', 'RUN', 'COPY', 'ADD', 'HEALTHCHECK']

function checkNoFlags({ name, flags }: Statement): void {
  if (!WITH_FLAGS.includes(name)) parseFlags(flags, {})
}

function parseFrom({ flags, rest }: Statement): InstructionBody {
  const known = parseFlags(flags, { platform: 'text' })
  const [image = '', as, stage, ...more] = splitBlanks(rest)
  const isNamed = as?.toLowerCase() === 'as' && stage !== undefined && more.length === 0
  if (image === '' || (as !== undefined && !isNamed)) throw new Problem('write FROM image, or FROM image AS name')
  if (isNamed && !/^[a-z][a-z0-9-_.]*$/i.test(stage)) {
    throw new Problem(`${quote(stage)} is not a name for a stage: a letter, then letters, digits, - _ and .`)
  }
  return { name: 'FROM', image, platform: known.text('platform'), stage: isNamed ? stage.toLowerCase() : undefined }
}

function parseArg(word: string): { name: string; value: string | undefined } {
  const equals = word.indexOf('=')
  if (equals === 0) throw blankName()
  return equals < 0 ? { name: word, value: undefined } : { name: word.slice(0, equals), value: word.slice(equals + 1) }
}

/** `name=value …`, or the old form `name value`, in which the value is the rest of the line. */
function parsePairs(rest: string, escapeChar: EscapeCharacter): { name: string; value: string }[] {
  const words = atLeastOne(splitWords(rest, escapeChar))
  if (!words[0]!.includes('=')) {
    const [name = ''] = splitBlanks(rest)
    if (name === rest) throw new Problem(`${quote(name)} has no value; write name=value`)
    return [{ name, value: skipBlanks(rest.slice(name.length)) }]
  }
  return words.map((word) => {
    const equals = word.indexOf('=')
    if (equals < 0) throw new Problem(`${quote(word)} has no =; write name=value, and quote values with blanks`)
    if (equals === 0) throw blankName()
    return { name: word.slice(0, equals), value: word.slice(equals + 1) }
  })
}

const blankName = () => new Problem('a name is missing before =')

function parseRun({ flags, rest, heredocs }: Statement): InstructionBody {
  const known = parseFlags(flags, { mount: 'list', device: 'list', network: 'text', security: 'text' })
  const command = parseCommand(rest)
  if (command.form === 'exec' && command.argv.length === 0) throw new Problem('the array is empty; name a program')
  return {
    name: 'RUN',
    command,
    heredocs,
    mounts: known.list('mount'),
    devices: known.list('device'),
    network: known.text('network'),
    security: known.text('security'),
  }
}

function parseCommand(rest: string): Command {
  const argv = parseStringArray(rest)
  return argv === undefined ? { form: 'shell', script: rest } : { form: 'exec', argv }
}

function parseShell(rest: string): string[] {
  const argv = parseStringArray(rest)
  if (argv === undefined || argv.length === 0) throw new Problem('write it as an array: SHELL ["/bin/bash", "-c"]')
  return argv
}

function parseVolumes(rest: string): string[] {
  const paths = atLeastOne(parseStringArray(rest) ?? splitBlanks(rest)).map((path) => path.trim())
  if (paths.includes('')) throw new Problem('a path is empty')
  return paths
}

const COPY_FLAGS = { chown: 'text', chmod: 'text', link: 'switch', exclude: 'list' } as const
const ADD_FLAGS = { ...COPY_FLAGS, checksum: 'text', 'keep-git-dir': 'switch', unpack: 'switch' } as const

function parseCopy(statement: Statement): InstructionBody {
  const flags = parseFlags(statement.flags, { ...COPY_FLAGS, from: 'text', parents: 'switch' })
  return {
    name: 'COPY',
    ...parseCopying(statement, flags),
    from: flags.text('from'),
    keepsParents: flags.isOn('parents') ?? false,
  }
}

function parseAdd(statement: Statement): InstructionBody {
  const flags = parseFlags(statement.flags, ADD_FLAGS)
  return {
    name: 'ADD',
    ...parseCopying(statement, flags),
    checksum: flags.text('checksum'),
    keepsGitDir: flags.isOn('keep-git-dir') ?? false,
    unpacks: flags.isOn('unpack'),
  }
}

function parseCopying(statement: Statement, flags: Flags<keyof typeof COPY_FLAGS>): Copying {
  return {
    ...parseSources(statement),
    chown: flags.text('chown'),
    chmod: flags.text('chmod'),
    isLinked: flags.isOn('link') ?? false,
    excludes: flags.list('exclude'),
  }
}

function parseSources({ rest, heredocs }: Statement): Pick<Copying, 'sources' | 'destination'> {
  const paths = parseStringArray(rest) ?? splitBlanks(rest)
  const destination = paths.pop()
  if (destination === undefined || paths.length === 0) throw new Problem('name at least one source and a destination')
  if (parseHeredocWord(destination)) throw new Problem('the destination cannot be a heredoc')
  // Two heredocs may have the same name, so they are matched by order.
  const documents = heredocs.values()
  const sources = paths.map((path) => (parseHeredocWord(path) ? (documents.next().value ?? path) : path))
  return { sources, destination }
}

function parseHealthcheck({ flags, rest }: Statement): Healthcheck | 'NONE' {
  const [type = ''] = splitBlanks(rest)
  const test = skipBlanks(rest.slice(type.length))
  if (type.toUpperCase() === 'NONE') {
    if (test !== '') throw new Problem('NONE takes no arguments')
    return 'NONE'
  }
  if (type.toUpperCase() !== 'CMD') throw new Problem('write HEALTHCHECK CMD command, or HEALTHCHECK NONE')
  const known = parseFlags(flags, {
    interval: 'text',
    timeout: 'text',
    'start-period': 'text',
    'start-interval': 'text',
    retries: 'text',
  })
  const command = parseCommand(test)
  if (test === '' || (command.form === 'exec' && command.argv.length === 0)) throw new Problem('CMD needs a command')
  return {
    command,
    intervalMs: parseDuration(known.text('interval')),
    timeoutMs: parseDuration(known.text('timeout')),
    startPeriodMs: parseDuration(known.text('start-period')),
    startIntervalMs: parseDuration(known.text('start-interval')),
    retries: parseRetries(known.text('retries')),
  }
}

const UNIT_MS = { h: 3_600_000, m: 60_000, s: 1000, ms: 1, us: 1e-3, µs: 1e-3, ns: 1e-6 }

/** `1m30s` in milliseconds. Zero and an empty text mean the default. */
function parseDuration(text: string | undefined): number | undefined {
  if (text === undefined || text === '' || text === '0') return undefined
  if (text.length > 40 || !/^((\d+\.?\d*|\.\d+)(h|ms|m|s|us|µs|ns))+$/.test(text)) {
    throw new Problem(`${quote(text)} is not a time such as 1m30s`)
  }
  const parts = text.matchAll(/([\d.]+)(h|ms|m|s|us|µs|ns)/g)
  const ms = parts.reduce((sum, [, count, unit]) => sum + Number(count) * UNIT_MS[unit as keyof typeof UNIT_MS], 0)
  if (ms === 0) return undefined
  if (ms < 1) throw new Problem(`${quote(text)} is shorter than 1ms`)
  return ms
}

function parseRetries(text: string | undefined): number | undefined {
  if (text === undefined || text === '') return undefined
  if (!/^\d{1,9}$/.test(text)) throw new Problem(`--retries is a number of at least 0, not ${quote(text)}`)
  return Number(text) || undefined
}

function parseTrigger({ rest, heredocs }: Statement): string {
  const [name = ''] = splitBlanks(rest)
  if (name === '') throw new Problem('name the instruction that it delays')
  if (['ONBUILD', 'FROM', 'MAINTAINER'].includes(name.toUpperCase())) {
    throw new Problem(`${name.toUpperCase()} cannot be delayed`)
  }
  return [rest, ...heredocs.map(({ name, content }) => `${content}${name}`)].join('\n')
}

function atLeastOne(words: string[]): string[] {
  if (words.length === 0) throw new Problem('needs at least one argument')
  return words
}

function needsText(rest: string, what: string): string {
  if (rest === '') throw new Problem(`needs ${what}`)
  return rest
}

const splitBlanks = (text: string): string[] => text.split(/[\t\v\f\r ]+/).filter((word) => word !== '')
const skipBlanks = (text: string): string => text.replace(/^[\t\v\f\r ]+/, '')

/** Splits at white space that is neither quoted nor escaped. Quotes and escapes stay in the words. */
function splitWords(text: string, escapeChar: EscapeCharacter): string[] {
  const words: string[] = []
  let word = ''
  let openQuote = ''
  for (let at = 0; at < text.length; at++) {
    const char = text[at]!
    if (openQuote === '' && isSpace(char)) {
      words.push(word)
      word = ''
    } else if (char === escapeChar && openQuote !== "'") {
      // At the end there is nothing to escape, and the character is dropped.
      const escaped = text[++at]
      if (escaped !== undefined) word += char + escaped
    } else {
      if (char === openQuote) openQuote = ''
      else if (openQuote === '' && (char === '"' || char === "'")) openQuote = char
      word += char
    }
  }
  return [...words, word].filter((one) => one !== '')
}
