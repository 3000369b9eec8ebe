/** Issues X.509 certificates (RFC 5280) for a local authority and for the host names below its domain: P-256, SHA-256. */
import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto'
import { addressBytes } from '../client-network.ts'
import { bits, explicit, implicit, integer, octets, oid, sequence, set, TRUE, text, time } from './der.ts'

export type Authority = { name: string; key: KeyObject; publicKey: KeyObject }

const ECDSA_SHA256 = sequence(oid('1.2.840.10045.4.3.2'))
const BASIC_CONSTRAINTS = '2.5.29.19'
const KEY_USAGE = '2.5.29.15'
const NAME_CONSTRAINTS = '2.5.29.30'
const EXTENDED_KEY_USAGE = '2.5.29.37'
const SERVER_AUTH = '1.3.6.1.5.5.7.3.1'
const SUBJECT_ALTERNATIVE_NAME = '2.5.29.17'
const SUBJECT_KEY_ID = '2.5.29.14'
const AUTHORITY_KEY_ID = '2.5.29.35'
const DAY_MS = 86_400_000
/** Certificates are valid from a little earlier, for clients whose clock is behind. */
const BACKDATE_MS = 3_600_000

export const newKeys = () => generateKeyPairSync('ec', { namedCurve: 'P-256' })

/** A name constraint limits the authority to names below `domain`, even if its key is stolen. */
export function issueAuthority({ name, key, publicKey }: Authority, domain: string, days: number): string {
  const permitted = sequence(explicit(0, sequence(implicit(2, Buffer.from(domain)))))
  return issue({ issuer: name, subject: name, publicKey, days }, key, [
    extension(BASIC_CONSTRAINTS, sequence(TRUE), true),
    extension(KEY_USAGE, bits(Buffer.from([0b0000_0110]), 1), true), // keyCertSign, cRLSign
    extension(NAME_CONSTRAINTS, permitted, true),
    extension(SUBJECT_KEY_ID, octets(keyIdOf(publicKey))),
  ])
}

/** `addresses` are IPv4 and IPv6 addresses: the name constraint of the authority is about names only. */
export function issueServer(
  authority: Authority,
  publicKey: KeyObject,
  names: readonly string[],
  days: number,
  addresses: readonly string[] = [],
): string {
  const alternatives = [
    ...names.map((name) => implicit(2, Buffer.from(name))),
    ...addresses.map((address) => implicit(7, addressBytes(address))),
  ]
  return issue({ issuer: authority.name, subject: 'Warren sandbox', publicKey, days }, authority.key, [
    extension(BASIC_CONSTRAINTS, sequence(), true),
    extension(KEY_USAGE, bits(Buffer.from([0b1000_0000]), 7), true), // digitalSignature
    extension(EXTENDED_KEY_USAGE, sequence(oid(SERVER_AUTH))),
    extension(SUBJECT_ALTERNATIVE_NAME, sequence(...alternatives)),
    extension(SUBJECT_KEY_ID, octets(keyIdOf(publicKey))),
    extension(AUTHORITY_KEY_ID, sequence(implicit(0, keyIdOf(authority.publicKey)))),
  ])
}

type Subject = { issuer: string; subject: string; publicKey: KeyObject; days: number }

function issue({ issuer, subject, publicKey, days }: Subject, key: KeyObject, extensions: Buffer[]): string {
  const now = Date.now()
  const certificate = sequence(
    explicit(0, integer(Buffer.from([2]))),
    integer(Buffer.concat([Buffer.from([1]), randomBytes(15)])),
    ECDSA_SHA256,
    commonName(issuer),
    sequence(time(new Date(now - BACKDATE_MS)), time(new Date(now + days * DAY_MS))),
    commonName(subject),
    publicKey.export({ type: 'spki', format: 'der' }),
    explicit(3, sequence(...extensions)),
  )
  return toPem(sequence(certificate, ECDSA_SHA256, bits(sign('sha256', certificate, key))))
}

const commonName = (name: string): Buffer => sequence(set(sequence(oid('2.5.4.3'), text(name))))

const extension = (id: string, value: Buffer, critical = false): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octets(value))

const keyIdOf = (publicKey: KeyObject): Buffer =>
  createHash('sha1')
    .update(publicKey.export({ type: 'spki', format: 'der' }))
    .digest()

const toPem = (der: Buffer): string =>
  `-----BEGIN CERTIFICATE-----\n${der
    .toString('base64')
    .match(/.{1,64}/g)!
    .join('\n')}\n-----END CERTIFICATE-----\n`
