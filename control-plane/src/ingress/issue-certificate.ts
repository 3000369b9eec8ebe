/** X.509 certificates of a local authority, and those it vouches for: P-256, SHA-256. */
import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto'
import { bits, explicit, implicit, integer, octets, oid, sequence, set, TRUE, text, time } from './der.ts'

export type Authority = { name: string; key: KeyObject; publicKey: KeyObject }

const ECDSA_SHA256 = sequence(oid('1.2.840.10045.4.3.2'))
const DAY_MS = 86_400_000
/** Clocks differ a little. */
const BACK_MS = 3_600_000

export const newKeys = () => generateKeyPairSync('ec', { namedCurve: 'P-256' })

/** It can vouch for names below `domain` only, whoever gets hold of its key. */
export function issueAuthority({ name, key, publicKey }: Authority, domain: string, days: number): string {
  const allowed = sequence(implicitSequence(0, sequence(implicit(2, Buffer.from(domain)))))
  return issue({ issuer: name, subject: name, publicKey, days }, key, [
    extension('2.5.29.19', sequence(TRUE), true),
    extension('2.5.29.15', bits(Buffer.from([0b0000_0110]), 1), true),
    extension('2.5.29.30', allowed, true),
    extension('2.5.29.14', octets(idOf(publicKey))),
  ])
}

export function issueServer(authority: Authority, publicKey: KeyObject, name: string, days: number): string {
  return issue({ issuer: authority.name, subject: 'Warren sandbox', publicKey, days }, authority.key, [
    extension('2.5.29.19', sequence(), true),
    extension('2.5.29.15', bits(Buffer.from([0b1000_0000]), 7), true),
    extension('2.5.29.37', sequence(oid('1.3.6.1.5.5.7.3.1'))),
    extension('2.5.29.17', sequence(implicit(2, Buffer.from(name)))),
    extension('2.5.29.14', octets(idOf(publicKey))),
    extension('2.5.29.35', sequence(implicit(0, idOf(authority.publicKey)))),
  ])
}

type Facts = { issuer: string; subject: string; publicKey: KeyObject; days: number }

function issue({ issuer, subject, publicKey, days }: Facts, key: KeyObject, extensions: Buffer[]): string {
  const now = Date.now()
  const body = sequence(
    explicit(0, integer(Buffer.from([2]))),
    integer(Buffer.concat([Buffer.from([1]), randomBytes(15)])),
    ECDSA_SHA256,
    commonName(issuer),
    sequence(time(new Date(now - BACK_MS)), time(new Date(now + days * DAY_MS))),
    commonName(subject),
    publicKey.export({ type: 'spki', format: 'der' }),
    explicit(3, sequence(...extensions)),
  )
  return toPem(sequence(body, ECDSA_SHA256, bits(sign('sha256', body, key))))
}

const commonName = (name: string): Buffer => sequence(set(sequence(oid('2.5.4.3'), text(name))))

const extension = (id: string, value: Buffer, critical = false): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octets(value))

const implicitSequence = (n: number, content: Buffer): Buffer => explicit(n, content)

const idOf = (publicKey: KeyObject): Buffer =>
  createHash('sha1')
    .update(publicKey.export({ type: 'spki', format: 'der' }))
    .digest()

const toPem = (der: Buffer): string =>
  `-----BEGIN CERTIFICATE-----\n${der
    .toString('base64')
    .match(/.{1,64}/g)!
    .join('\n')}\n-----END CERTIFICATE-----\n`
