/** The part of DER encoding (ITU-T X.690) that certificates need. Node can parse certificates but not create them. */

const tagged = (tag: number, content: Buffer): Buffer => Buffer.concat([Buffer.from([tag]), length(content), content])

/** No certificate is near this size; a longer length would need a third byte. */
const LENGTH_MAX = 0xffff

function length({ length: n }: Buffer): Buffer {
  if (n > LENGTH_MAX) throw new RangeError(`a DER value of ${n} bytes is longer than ${LENGTH_MAX} bytes`)
  if (n < 0x80) return Buffer.from([n])
  const bytes = Buffer.from(n.toString(16).padStart(n > 0xff ? 4 : 2, '0'), 'hex')
  return Buffer.concat([Buffer.from([0x80 | bytes.length]), bytes])
}

export const sequence = (...parts: Buffer[]): Buffer => tagged(0x30, Buffer.concat(parts))
export const set = (...parts: Buffer[]): Buffer => tagged(0x31, Buffer.concat(parts))
export const octets = (content: Buffer): Buffer => tagged(0x04, content)
export const text = (content: string): Buffer => tagged(0x0c, Buffer.from(content, 'utf8'))
export const bits = (content: Buffer, unused = 0): Buffer =>
  tagged(0x03, Buffer.concat([Buffer.from([unused]), content]))
export const TRUE = tagged(0x01, Buffer.from([0xff]))

/** A positive integer. If the highest bit is set, a leading zero byte keeps it from being negative. */
export const integer = (bytes: Buffer): Buffer =>
  tagged(0x02, bytes[0]! & 0x80 ? Buffer.concat([Buffer.from([0]), bytes]) : bytes)

export const explicit = (tag: number, content: Buffer): Buffer => tagged(0xa0 | tag, content)
export const implicit = (tag: number, content: Buffer): Buffer => tagged(0x80 | tag, content)

/** UTC in seconds. RFC 5280 requires UTCTime until 2049 and GeneralizedTime from 2050. */
export function time(at: Date): Buffer {
  const digits = at.toISOString().replace(/[-:T]|\.\d+/g, '')
  return at.getUTCFullYear() < 2050 ? tagged(0x17, Buffer.from(digits.slice(2))) : tagged(0x18, Buffer.from(digits))
}

export function oid(dotted: string): Buffer {
  const [first = 0, second = 0, ...rest] = dotted.split('.').map(Number)
  const bytes = [first * 40 + second]
  for (const number of rest) {
    const groups = [number & 0x7f]
    for (let more = number >>> 7; more > 0; more >>>= 7) groups.unshift((more & 0x7f) | 0x80)
    bytes.push(...groups)
  }
  return tagged(0x06, Buffer.from(bytes))
}
