/**
 * A transfer that the payer signed and another party may send (EIP-3009), as x402 and MPP carry it. The token accepts each
 * nonce once. The signature says who pays whom how much; it does not say for what. The signed request around it does.
 */
import { encodeFunctionData, parseAbi, parseSignature, recoverTypedDataAddress } from 'viem'
import { AUTHORIZATION_DOMAIN, type Chain, type Token } from '../chains/table.ts'

type Hex = `0x${string}`

export type Authorization = {
  from: Hex
  to: Hex
  value: bigint
  validAfter: bigint
  validBefore: bigint
  nonce: Hex
  signature: Hex
}

export const AUTHORIZATION_ABI = parseAbi([
  'function transferWithAuthorization(address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce, uint8 v, bytes32 r, bytes32 s)',
  'function authorizationState(address authorizer, bytes32 nonce) view returns (bool)',
  'event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce)',
])

export const AUTHORIZATION_TYPES = {
  TransferWithAuthorization: [
    { name: 'from', type: 'address' },
    { name: 'to', type: 'address' },
    { name: 'value', type: 'uint256' },
    { name: 'validAfter', type: 'uint256' },
    { name: 'validBefore', type: 'uint256' },
    { name: 'nonce', type: 'bytes32' },
  ],
} as const

export async function isSignedByPayer(chain: Chain, token: Token, authorization: Authorization): Promise<boolean> {
  const { signature, ...message } = authorization
  try {
    const signer = await recoverTypedDataAddress({
      domain: { ...AUTHORIZATION_DOMAIN, chainId: chain.id, verifyingContract: token.address },
      types: AUTHORIZATION_TYPES,
      primaryType: 'TransferWithAuthorization',
      message,
      signature,
    })
    return signer.toLowerCase() === authorization.from
  } catch {
    return false // No point of the curve belongs to it.
  }
}

export function encodeTransfer({ signature, ...transfer }: Authorization): Hex {
  const { from, to, value, validAfter, validBefore, nonce } = transfer
  const { r, s, yParity } = parseSignature(signature)
  return encodeFunctionData({
    abi: AUTHORIZATION_ABI,
    functionName: 'transferWithAuthorization',
    args: [from, to, value, validAfter, validBefore, nonce, 27 + yParity, r, s],
  })
}
