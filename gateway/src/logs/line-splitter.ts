/** Turns chunks of output into lines with secrets hidden. A secret that is split between two chunks is hidden too. */
import { StringDecoder } from 'node:string_decoder'
import type { Mask } from './mask.ts'

/** Longer lines are split. */
export const LINE_MAX = 4_096

export class LineSplitter {
  readonly #decoder = new StringDecoder('utf8')
  readonly #mask: Mask
  #rest = ''

  constructor(mask: Mask) {
    this.#mask = mask
  }

  push(bytes: Buffer): string[] {
    this.#rest += this.#decoder.write(bytes)
    const lines = this.#rest.split('\n')
    this.#rest = lines.pop() ?? ''
    const whole = lines.flatMap((line) => this.#finish(line))
    // What may be the beginning of a secret stays until more has arrived.
    const keep = Math.max(LINE_MAX, 2 * this.#mask.longest)
    if (this.#rest.length <= 2 * keep) return whole
    const unfinished = BEGUN_ESCAPE.exec(this.#rest)?.[0] ?? ''
    const begun = cleanLine(this.#rest.slice(0, this.#rest.length - unfinished.length), this.#mask)
    this.#rest = begun.slice(-keep) + unfinished
    return [...whole, ...cut(begun.slice(0, -keep))]
  }

  /** The last line, if the output does not end with a line break. */
  end(): string[] {
    const rest = this.#rest + this.#decoder.end()
    this.#rest = ''
    return rest === '' ? [] : this.#finish(rest)
  }

  #finish(line: string): string[] {
    // Progress bars overwrite their line; what was visible last remains.
    const visible = line.replace(/\r$/, '').split('\r').at(-1)!
    return cut(cleanLine(visible, this.#mask))
  }
}

/** Secrets are hidden first, because one may have a control character, and last, because a colour may be inside of one. */
export const cleanLine = (line: string, mask: Mask): string => mask.hide(removeControls(mask.hide(line)))

function cut(line: string): string[] {
  if (line.length <= LINE_MAX) return [line]
  return Array.from({ length: Math.ceil(line.length / LINE_MAX) }, (_, i) =>
    line.slice(i * LINE_MAX, (i + 1) * LINE_MAX),
  )
}

/** Colours, titles of windows and the like: control sequences that end (CSI and OSC of ECMA-48). */
// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\))/g
/** One at the end of a text, whose rest may be in the next chunk. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: see above.
const BEGUN_ESCAPE = /\u001b[^\u001b]{0,64}$/
/** All but the tab. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for.
const CONTROLS = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f]/g

/** PostgreSQL stores no NUL characters, and terminals of readers obey the others. */
const removeControls = (text: string): string => text.replace(ESCAPES, '').replace(CONTROLS, '').toWellFormed()
