// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// A token for test chains, put at the addresses of the real ones. Storage: slot 0 balances, slot 2 the fee.
contract TestToken {
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;
    /// Hundredths of a percent that a transfer loses on its way, although its event states the whole amount.
    uint256 public hiddenFee;
    mapping(address => mapping(bytes32 => bool)) public authorizationState;

    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);

    function name() external pure returns (string memory) { return "USD Coin"; }
    function version() external pure returns (string memory) { return "2"; }
    function symbol() external pure returns (string memory) { return "TEST"; }
    function decimals() external pure returns (uint8) { return 6; }

    function mint(address to, uint256 value) external {
        balanceOf[to] += value;
        emit Transfer(address(0), to, value);
    }

    function setHiddenFee(uint256 value) external { hiddenFee = value; }

    function approve(address spender, uint256 value) external returns (bool) {
        allowance[msg.sender][spender] = value;
        emit Approval(msg.sender, spender, value);
        return true;
    }

    function transfer(address to, uint256 value) external returns (bool) {
        move(msg.sender, to, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value) external returns (bool) {
        require(allowance[from][msg.sender] >= value, "allowance");
        allowance[from][msg.sender] -= value;
        move(from, to, value);
        return true;
    }

    /// EIP-3009.
    function transferWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        uint8 v, bytes32 r, bytes32 s
    ) public {
        require(block.timestamp > validAfter && block.timestamp < validBefore, "time");
        require(!authorizationState[from][nonce], "used");
        bytes32 message = keccak256(abi.encode(
            keccak256("TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"),
            from, to, value, validAfter, validBefore, nonce));
        require(ecrecover(keccak256(abi.encodePacked("\x19\x01", DOMAIN_SEPARATOR(), message)), v, r, s) == from, "signature");
        authorizationState[from][nonce] = true;
        emit AuthorizationUsed(from, nonce);
        move(from, to, value);
    }

    function DOMAIN_SEPARATOR() public view returns (bytes32) {
        return keccak256(abi.encode(
            keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
            keccak256("USD Coin"), keccak256("2"), block.chainid, address(this)));
    }

    function move(address from, address to, uint256 value) private {
        require(balanceOf[from] >= value, "balance");
        balanceOf[from] -= value;
        balanceOf[to] += value - value * hiddenFee / 10_000;
        emit Transfer(from, to, value);
    }
}

/// A contract wallet, and a relayer that moves tokens of others with their allowance.
contract TestWallet {
    address public owner;

    constructor(address owner_) { owner = owner_; }

    function send(TestToken token, address to, uint256 value) external {
        require(msg.sender == owner, "owner");
        token.transfer(to, value);
    }

    /// One transaction with several transfers, each from its own payer.
    function pull(TestToken token, address[] calldata from, address to, uint256[] calldata values) external {
        for (uint256 i = 0; i < values.length; i++) token.transferFrom(from[i], to, values[i]);
    }

    /// Succeeds without moving anything.
    function nothing(TestToken, address, uint256) external {}

    /// EIP-1271.
    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        if (signature.length != 65) return 0xffffffff;
        address signer = ecrecover(hash, uint8(signature[64]), bytes32(signature[0:32]), bytes32(signature[32:64]));
        return signer == owner ? bytes4(0x1626ba7e) : bytes4(0xffffffff);
    }
}
