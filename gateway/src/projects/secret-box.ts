/**
 * Encrypts the environment variables of deployments at rest (AES-256-GCM). The key is a file in the data directory, made
 * at the first start, so that a copy of the database alone reveals nothing. Each box is bound to its deployment.
 */
import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto'
import { link, mkdir, open, readFile, rm } from 'node:fs/promises'
import path from 'node:path'

export type SecretBox = {
  seal(deploymentId: string, value: unknown): Buffer
  /** Throws when the box was made with another key or for another deployment. */
  open(deploymentId: string, box: Buffer): unknown
  /** Another key for another purpose, the same after each start. In hexadecimal. */
  deriveKey(purpose: string): string
}

const KEY_BYTES = 32
const IV_BYTES = 12
const TAG_BYTES = 16
const ALGORITHM = 'aes-256-gcm'

export async function openSecretBox(dataDir: string): Promise<SecretBox> {
  const key = await readOrCreateKey(path.join(dataDir, 'secrets.key'))
  return {
    seal(deploymentId, value) {
      const iv = randomBytes(IV_BYTES)
      const cipher = createCipheriv(ALGORITHM, key, iv, { authTagLength: TAG_BYTES })
      cipher.setAAD(Buffer.from(deploymentId))
      const sealed = Buffer.concat([cipher.update(JSON.stringify(value), 'utf8'), cipher.final()])
      return Buffer.concat([iv, cipher.getAuthTag(), sealed])
    },
    open(deploymentId, box) {
      const decipher = createDecipheriv(ALGORITHM, key, box.subarray(0, IV_BYTES), { authTagLength: TAG_BYTES })
      decipher.setAAD(Buffer.from(deploymentId))
      decipher.setAuthTag(box.subarray(IV_BYTES, IV_BYTES + TAG_BYTES))
      const opened = Buffer.concat([decipher.update(box.subarray(IV_BYTES + TAG_BYTES)), decipher.final()])
      return JSON.parse(opened.toString('utf8'))
    },
    deriveKey: (purpose) => createHmac('sha256', key).update(`warren gateway: ${purpose}`).digest('hex'),
  }
}

async function readOrCreateKey(file: string): Promise<Buffer> {
  await createKey(file)
  const key = Buffer.from((await readFile(file, 'utf8')).trim(), 'hex')
  if (key.length !== KEY_BYTES) throw new Error(`${file} does not hold a key of ${KEY_BYTES} bytes in hexadecimal`)
  return key
}

/** Written completely under another name first: of several processes that start together, one key wins. */
async function createKey(file: string): Promise<void> {
  await mkdir(path.dirname(file), { recursive: true, mode: 0o700 })
  const temporary = `${file}.${randomBytes(6).toString('hex')}`
  const handle = await open(temporary, 'wx', 0o600)
  try {
    await handle.writeFile(`${randomBytes(KEY_BYTES).toString('hex')}\n`)
    await handle.sync()
    await link(temporary, file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await handle.close()
    await rm(temporary, { force: true })
  }
}
