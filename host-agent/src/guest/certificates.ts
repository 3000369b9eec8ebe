/** Reads certificates in PEM format from a file, or from all `.crt` and `.pem` files of a folder. */
import { X509Certificate } from 'node:crypto'
import { readdir, readFile, stat } from 'node:fs/promises'
import path from 'node:path'

/** Each certificate once, in a canonical form: comments and line ends do not matter. */
export async function readCertificates(fileOrFolder: string): Promise<string[]> {
  const isFolder = (await stat(fileOrFolder)).isDirectory()
  const files = isFolder ? await listCertificateFiles(fileOrFolder) : [fileOrFolder]
  const texts = await Promise.all(files.map((file) => readFile(file, 'utf8')))
  return [...new Set(texts.flatMap(parseCertificates))]
}

async function listCertificateFiles(folder: string): Promise<string[]> {
  const names = (await readdir(folder, { recursive: true })).filter((name) => /\.(crt|pem)$/.test(name))
  return names.sort().map((name) => path.join(folder, name))
}

/** Throws if a certificate is malformed. */
export function parseCertificates(text: string): string[] {
  const blocks = text.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? []
  return blocks.map((pem) => new X509Certificate(pem).toString())
}

/** For messages: the common name of the authority, or its whole name. */
export function nameOfCertificate(pem: string): string {
  const { subject } = new X509Certificate(pem)
  return /^CN=(.+)$/m.exec(subject)?.[1] ?? subject.replaceAll('\n', ', ')
}
