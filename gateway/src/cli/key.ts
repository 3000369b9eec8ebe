/** The private key of the wallet: from a file, the environment or a prompt. Never from a flag, which other users can see. */
import { readFile } from 'node:fs/promises'
import { createInterface } from 'node:readline'
import { Writable } from 'node:stream'
import { readServiceFile } from '@warren/kit/confine/read-service-file'
import { type PrivateKeyAccount, privateKeyToAccount } from 'viem/accounts'
import { PRIVATE_KEY } from '../config.ts'

type Env = Record<string, string | undefined>

/** In development, the funded wallet of the development chain is used if no other is named. */
export async function readAccount(keyFile: string | undefined, env: Env): Promise<PrivateKeyAccount> {
  const key = (await readKey(keyFile, env)).trim()
  const prefixed = key.startsWith('0x') ? key : `0x${key}`
  // The key itself must not appear in a message.
  if (!PRIVATE_KEY.test(prefixed)) throw new Error('the private key must have 64 hexadecimal digits')
  return privateKeyToAccount(prefixed as `0x${string}`)
}

async function readKey(keyFile: string | undefined, env: Env): Promise<string> {
  if (keyFile !== undefined) return readKeyFile(keyFile)
  if (env.WARREN_GATEWAY_WALLET_KEY) return env.WARREN_GATEWAY_WALLET_KEY
  if (env.WARREN_GATEWAY_DEV_KEY_FILE) return readServiceFile(env.WARREN_GATEWAY_DEV_KEY_FILE)
  if (process.stdin.isTTY) return prompt('Private key of the wallet: ')
  throw new Error('no wallet: use --key-file, or set WARREN_GATEWAY_WALLET_KEY')
}

const readKeyFile = (file: string): Promise<string> =>
  readFile(file, 'utf8').catch((cause) => {
    throw new Error(`failed to read the private key of the wallet from ${file}`, { cause })
  })

async function prompt(question: string): Promise<string> {
  process.stderr.write(question)
  // What is typed is not shown.
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() })
  const lines = createInterface({ input: process.stdin, output: silent, terminal: true })
  try {
    return await new Promise<string>((resolve) => lines.question('', resolve))
  } finally {
    lines.close()
    process.stderr.write('\n')
  }
}
