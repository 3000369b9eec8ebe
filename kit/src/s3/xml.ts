/**
 * Reads the small subset of XML that S3 uses. The text comes from servers that users name, so the parser is strict and bounded:
 * no document types (and with them no entities but the five of XML), no more elements or levels than the caller expects.
 * Attributes and namespaces are skipped.
 */

export type XmlElement = { name: string; text: string; children: XmlElement[] }

export type XmlLimits = { elements: number; depth: number }

const DEFAULT_LIMITS: XmlLimits = { elements: 100, depth: 4 }

/** Throws if the text is not a document in this subset, or exceeds the limits. The caller limits the length of the text. */
export function parseXml(text: string, limits: XmlLimits = DEFAULT_LIMITS): XmlElement {
  const document: XmlElement = { name: '', text: '', children: [] }
  const open = [document]
  let elements = 0
  let at = text.startsWith('\uFEFF') ? 1 : 0
  while (at < text.length) {
    const current = open.at(-1)!
    const lessThan = text.indexOf('<', at)
    const end = lessThan === -1 ? text.length : lessThan
    if (end > at) current.text += decodeEntities(text.slice(at, end))
    if (lessThan === -1) break
    const close = findTagEnd(text, lessThan)
    const tag = text.slice(lessThan + 1, close)
    at = close + 1
    if (tag.startsWith('?')) continue
    if (tag.startsWith('!')) throw new Error('declarations are not allowed in XML of S3')
    if (tag.startsWith('/')) {
      if (open.length === 1 || current.name !== localName(tag.slice(1))) throw new Error('XML tags do not match')
      open.pop()
      continue
    }
    if (++elements > limits.elements) throw new Error(`XML has more than ${limits.elements} elements`)
    const isEmpty = tag.endsWith('/')
    const element: XmlElement = { name: localName(isEmpty ? tag.slice(0, -1) : tag), text: '', children: [] }
    current.children.push(element)
    if (isEmpty) continue
    open.push(element)
    if (open.length > limits.depth + 1) throw new Error(`XML has more than ${limits.depth} levels`)
  }
  const [root] = document.children
  if (open.length > 1) throw new Error('XML ends before its last tag')
  if (root === undefined || document.children.length > 1 || document.text.trim() !== '') {
    throw new Error('XML must have one root element')
  }
  return root
}

/** The text of the child; undefined if there is none. Throws if there are several, because readers would differ. */
export function findText({ name, children }: XmlElement, child: string): string | undefined {
  const found = children.filter((one) => one.name === child)
  if (found.length > 1) throw new Error(`${name} has several elements ${child}`)
  return found[0]?.text
}

/** Characters that XML 1.0 cannot contain are refused when they are read, and must be percent-encoded by the caller. */
export const escapeXml = (text: string): string => text.replace(/[<>&"']/g, (char) => ESCAPES[char]!)

const ESCAPES: Record<string, string> = { '<': '&lt;', '>': '&gt;', '&': '&amp;', '"': '&quot;', "'": '&apos;' }
const ENTITIES: Record<string, string> = { lt: '<', gt: '>', amp: '&', quot: '"', apos: "'" }

/** The index of the `>` of the tag that begins here. Values of attributes may contain one. */
function findTagEnd(text: string, start: number): number {
  let quote = ''
  for (let i = start + 1; i < text.length; i++) {
    const char = text[i]!
    if (quote !== '') {
      if (char === quote) quote = ''
    } else if (char === '"' || char === "'") quote = char
    else if (char === '>') return i
    else if (char === '<') break
  }
  throw new Error('an XML tag has no end')
}

/** Without attributes and without the prefix of a namespace. */
function localName(tag: string): string {
  const name = /^(?:[\w.-]+:)?([A-Za-z_][\w.-]*)(?:\s|$)/.exec(tag)?.[1]
  if (name === undefined) throw new Error('an XML tag has no valid name')
  return name
}

function decodeEntities(text: string): string {
  return text.replace(/&([^;&\s]{0,10});?/g, (whole, entity: string) => {
    if (!whole.endsWith(';')) throw new Error('an XML entity has no end')
    const named = ENTITIES[entity]
    if (named !== undefined) return named
    const [, hex, decimal] = /^#(?:x([0-9a-fA-F]{1,6})|([0-9]{1,7}))$/.exec(entity) ?? []
    const code = hex === undefined ? Number(decimal ?? Number.NaN) : Number.parseInt(hex, 16)
    if (!isXmlChar(code)) throw new Error('XML has an unknown entity')
    return String.fromCodePoint(code)
  })
}

/** Servers write characters such as `&#x1;` although XML 1.0 forbids them. */
const isXmlChar = (code: number): boolean => code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff)
